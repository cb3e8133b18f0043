// What is alive at one moment: as a tree of modules, a tree of calls, and two tables.
const NO_MODULE = "outside any module";

function moduleTree(data, origins) {
  const root = node("all");
  for (const each of origins) {
    const path = each.module < 0 ? [NO_MODULE] : data.modules[each.module].split(".");
    grow(root, [...path, data.titles[each.category]], each);
  }
  return root;
}

// Without the frames of libraries, but for the innermost one: it names what the user's line called.
function stackTree(data, blocks, origins, libraries) {
  const root = node("all");
  for (const each of origins) {
    const stack = each.stack < 0 ? [] : blocks.stacks[each.stack].map((frame) => data.frames[frame]);
    const shown = libraries ? stack : stack.filter(([, , , kind], index) => kind === 0 || (index === stack.length - 1 && kind === 1));
    const path = shown.map(([file, line, name]) => `${name} · ${shortFile(file)}${line ? `:${line}` : ""}`);
    const none = each.stack === -2 ? "stacks that are not in this page" : "no stack recorded";
    grow(root, [...(path.length ? path : [none]), data.titles[each.category]], each);
  }
  return root;
}

function shortFile(file) {
  return file.split(/[\\/]/).slice(-2).join("/");
}

function node(name) {
  return { name, bytes: 0, count: 0, byCategory: new Map(), children: new Map() };
}

function grow(root, path, { bytes, count, category }) {
  let at = root;
  add(at, bytes, count, category);
  for (const name of path) {
    if (!at.children.has(name)) at.children.set(name, node(name));
    at = at.children.get(name);
    add(at, bytes, count, category);
  }
}

function add(at, bytes, count, category) {
  at.bytes += bytes;
  at.count += count;
  at.byCategory.set(category, (at.byCategory.get(category) ?? 0) + bytes);
}

function largestCategory(at) {
  return [...at.byCategory].reduce((best, each) => (each[1] > best[1] ? each : best), ["unknown", -1])[0];
}

const MOST_ROWS = 60;

function linesTable(data, origins, total) {
  const merged = new Map();
  for (const each of origins) {
    const module = each.module < 0 ? "" : data.modules[each.module].replace(/(^|\.)\d+(?=\.|$)/g, "$1*");
    const key = `${each.category}\n${each.place}\n${module}`;
    const row = merged.get(key) ?? { ...each, module, bytes: 0, count: 0 };
    row.bytes += each.bytes;
    row.count += each.count;
    merged.set(key, row);
  }
  const rows = [...merged.values()].sort((a, b) => b.bytes - a.bytes);
  const cells = rows.slice(0, MOST_ROWS).map((row) => [
    size(row.bytes), percent(row.bytes, total), row.count.toLocaleString("en"), data.titles[row.category],
    [placeText(data, row.place), row.module].filter(Boolean).join(" · "),
  ]);
  const rest = rows.slice(MOST_ROWS).reduce((sum, row) => sum + row.bytes, 0);
  const note = rest ? `${counted(rows.length - MOST_ROWS, "more line")}, ${size(rest)}` : "";
  return { table: table(["bytes", "share", "blocks", "for", "line"], cells, 3), note };
}

function blocksTable(data, device, rows, total) {
  const { birth, death, size: bytes, origin, origins } = device.blocks;
  const order = [...rows].sort((a, b) => bytes[b] - bytes[a]);
  const cells = order.slice(0, MOST_ROWS).map((row) => {
    const [category, exact, module, place] = origins[origin[row]];
    return [
      size(bytes[row]), percent(bytes[row], total), birth[row] < 0 ? "before the trace" : birth[row].toLocaleString("en"),
      death[row] >= device.events ? "not in the trace" : death[row].toLocaleString("en"),
      data.titles[category] + (exact || category === "unknown" ? "" : " (inferred)"),
      [placeText(data, place), module < 0 ? "" : data.modules[module]].filter(Boolean).join(" · "),
    ];
  });
  const note = order.length > MOST_ROWS ? `the ${MOST_ROWS} largest of ${counted(order.length, "block")}` : "";
  return { table: table(["bytes", "share", "made at event", "freed at", "for", "line"], cells, 4), note };
}

function table(heads, rows, numbers) {
  const cell = (tag, text, column) => make(tag, { className: column < numbers ? "n" : "", textContent: text });
  const head = make("tr", {}, ...heads.map((text, column) => Object.assign(cell("th", text, column), { scope: "col" })));
  const body = rows.map((row) => make("tr", {}, ...row.map((text, column) => {
    if (column < row.length - 1) return cell("td", text, column);
    return make("td", {}, make("code", { textContent: text }));
  })));
  return make("table", {}, make("thead", {}, head), make("tbody", {}, ...body));
}
