// Puts the charts and the controls together. Without data there is only text, and the copy and theme buttons.
const view = { data: null, device: null, index: 0, tab: "modules", path: [], chart: null, map: null };

function showDevice(number) {
  view.device = view.data.devices[number];
  view.path = [];
  drawTime();
  drawMap();
  const slider = byId("moment");
  slider.max = view.device.at.length - 1;
  slider.disabled = view.device.at.length < 2;
  select(view.device.moment);
}

function drawTime() {
  view.chart?.destroy();
  const { device, data } = view;
  view.chart = timeChart(byId("chart"), device, data, select);
  byId("unzoom").disabled = false;
  const drawn = device.at.length - 1 < device.events ? `${counted(device.at.length, "moment")} of ${counted(device.events, "event")} are drawn, the highest and lowest of each stretch among them: no peak is lost.` : "";
  const mouse = device.events ? "Drag to zoom in, double-click for all, click to choose a moment; with the keyboard, move the slider." : "The recording has no events: only its state is known.";
  byId("chart-note").textContent = [mouse, drawn].filter(Boolean).join(" ");
}

function select(index) {
  const { device, chart } = view;
  view.index = Math.max(0, Math.min(device.at.length - 1, index));
  chart.select(view.index);
  const slider = byId("moment");
  slider.value = view.index;
  const total = totalAt(device, view.index);
  const failed = device.failed && view.index === device.moment ? `, when ${size(device.requested)} more were asked for` : "";
  const text = `${momentText(device, view.index)}: ${size(total)} of tensors in ${size(device.reserved[view.index])} reserved${failed}`;
  slider.setAttribute("aria-valuetext", text);
  byId("readout").textContent = text;
  byId("chart").setAttribute("aria-label", `Memory over time, stacked by category. Chosen: ${text}`);
  byId("to-moment").disabled = view.index === device.moment;
  legend();
  drawAlive();
}

function legend() {
  const { device, chart, data, index } = view;
  const keys = [...chart.keys].reverse().map((key) => legendEntry("key", partColor(key), `${data.titles[key]} ${size(device.categories[key][index])}`));
  const lines = [legendEntry("key line", null, "reserved")];
  if (chart.showRoom) lines.push(legendEntry("key line dashed", null, `what the card has for PyTorch, ${size(chart.room)}`));
  byId("legend").replaceChildren(...keys, ...lines);
}

function legendEntry(className, color, text) {
  const key = make("i", { className });
  key.setAttribute("aria-hidden", "true");
  if (color) key.style.backgroundColor = color;
  return make("span", {}, key, text);
}

function drawAlive() {
  const { data, device, index, tab } = view;
  const rows = aliveAt(device, index);
  const origins = aliveByOrigin(device, rows);
  const total = totalAt(device, index);
  const holder = byId("tiles");
  const { rest_bytes: restBytes, rest_count: restCount } = device.blocks;
  const rest = restBytes && restCount[index] ? ` ${counted(restCount[index], "small block")} (${size(restBytes[index])}) are not listed one by one.` : "";
  byId("alive-note").textContent = `${momentText(device, index)}: ${counted(rows.length, "block")}, ${size(total)}.${rest}`;
  byId("library-label").hidden = tab !== "stacks";
  byId("tiles-note").textContent = "";
  holder.style.height = "";
  if (tab === "lines" || tab === "blocks") {
    const found = tab === "lines" ? linesTable(data, origins, total) : blocksTable(data, device, rows, total);
    holder.className = "table scroll";
    holder.replaceChildren(found.table);
    byId("tiles-note").textContent = found.note;
    byId("crumbs").replaceChildren();
    return;
  }
  holder.className = "boxes";
  const root = tab === "modules" ? moduleTree(data, origins) : stackTree(data, device.blocks, origins, byId("library").checked);
  const at = follow(root);
  crumbs(root);
  const hidden = (tab === "modules" ? drawTreemap : drawFlame)(holder, at, (to) => { view.path = pathTo(at, to, view.path); drawAlive(); });
  const nothing = tab === "modules" && origins.every((each) => each.module < 0);
  const notes = [nothing ? "Modules are known in recordings of oomdoc run; here all is outside any module." : "", hidden ? `${hidden} small tiles are not drawn.` : ""];
  byId("tiles-note").textContent = notes.filter(Boolean).join(" ");
}

// The chosen part of the tree; as far as it is there at this moment.
function follow(root) {
  let at = root;
  const kept = [];
  for (const name of view.path) {
    if (!at.children.has(name)) break;
    at = at.children.get(name);
    kept.push(name);
  }
  view.path = kept;
  return at;
}

function pathTo(from, to, before) {
  const walk = (at, path) => {
    if (at === to) return path;
    for (const [name, child] of at.children) {
      const found = walk(child, [...path, name]);
      if (found) return found;
    }
    return null;
  };
  return walk(from, before) ?? before;
}

function crumbs() {
  const entry = (text, depth) => {
    const button = make("button", { type: "button", textContent: text });
    button.disabled = depth === view.path.length;
    button.addEventListener("click", () => { view.path = view.path.slice(0, depth); drawAlive(); });
    return button;
  };
  byId("crumbs").replaceChildren(entry("all", 0), ...view.path.map((name, depth) => entry(name, depth + 1)));
}

function drawMap() {
  const { device, data } = view;
  byId("allocator").hidden = device.map === null;
  view.map = null;
  if (device.map === null) return;
  byId("map-readout").textContent = "";
  view.map = allocatorMap(byId("map"), byId("map-readout"), device, data);
  const { total, segments, pinned } = view.map;
  const pins = pinned ? ` ${counted(pinned, "segment")} with free bytes ${pinned === 1 ? "is" : "are"} pinned by live blocks (outlined).` : "";
  const left = device.map.left_out ? ` ${counted(device.map.left_out, "small segment")} (${size(device.map.left_out_bytes)}) are not drawn.` : "";
  byId("map-note").textContent = `${size(total)} in ${counted(segments, "segment")} ${device.failed ? "at the failure" : "at the peak"}, to scale, one after another by address.${pins}${left} Click a segment, or move with the arrow keys.`;
  const entries = stackedCategories(device).map((key) => legendEntry("key", partColor(key), data.titles[key]));
  entries.push(legendEntry("key", css("--part-free"), "free"));
  if (pinned) entries.push(legendEntry("key pin", null, "pinned"));
  byId("map-legend").replaceChildren(...entries);
}

function tabs() {
  const all = [...document.querySelectorAll('[role="tab"]')];
  for (const tab of all) {
    tab.addEventListener("click", () => {
      for (const each of all) {
        each.setAttribute("aria-selected", String(each === tab));
        each.tabIndex = each === tab ? 0 : -1;
      }
      view.tab = tab.id.replace("tab-", "");
      view.path = [];
      byId("tiles").setAttribute("aria-labelledby", tab.id);
      if (view.device) drawAlive();
    });
  }
  roving(document.querySelector('[role="tablist"]'), '[role="tab"]');
  roving(byId("tiles"), ".tile");
  byId("library").addEventListener("change", () => { view.path = []; drawAlive(); });
}

function redraw() {
  if (!view.device) return;
  drawTime();
  drawMap();
  select(view.index);
}

function controls() {
  byId("moment").addEventListener("input", (event) => select(Number(event.target.value)));
  byId("to-moment").addEventListener("click", () => select(view.device.moment));
  byId("unzoom").addEventListener("click", () => view.chart.whole());
  byId("device").addEventListener("change", (event) => showDevice(Number(event.target.value)));
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    view.chart.resize();
    view.map?.draw();
    drawAlive();
  });
}

function theme() {
  const button = byId("theme");
  const names = ["system", "light", "dark"];
  let at = 0;
  const set = (name) => {
    if (name === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = name;
    redraw();
  };
  button.hidden = false;
  button.addEventListener("click", () => {
    at = (at + 1) % names.length;
    button.textContent = `Theme: ${names[at]}`;
    set(names[at]);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  addEventListener("beforeprint", () => {
    for (const each of document.querySelectorAll("details")) each.open = true;
    set("light");
  });
  addEventListener("afterprint", () => set(names[at]));
}

function copying() {
  for (const button of document.querySelectorAll(".copy")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const code = button.parentElement.querySelector("code");
      try {
        await navigator.clipboard.writeText(code.textContent);
      } catch {
        getSelection().selectAllChildren(code);
        document.execCommand("copy");
      }
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
  }
}

async function start() {
  theme();
  copying();
  const source = byId("data");
  if (!source) return;
  try {
    view.data = await unpack(source.textContent);
  } catch {
    byId("old-browser").hidden = false;
    return;
  }
  byId("charts").hidden = false;
  const picker = byId("device");
  picker.append(...view.data.devices.map((each, index) => make("option", { value: String(index), textContent: each.title })));
  byId("picker").hidden = view.data.devices.length < 2;
  tabs();
  controls();
  if (!view.data.modules.length) byId("tab-stacks").click();
  showDevice(0);
  document.documentElement.dataset.ready = "yes";
}

start();
