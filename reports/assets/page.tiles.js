// A tree as a treemap (modules) or as a flame graph from the top (calls). Tiles are buttons: Enter zooms, arrows move.
const MOST_TILES = 700;

function hierarchy(root, depth) {
  const children = (at) => (at.depthLeft > 0 ? at.parts : null);
  const wrap = (at, left) => {
    const parts = left > 0 ? [...at.children.values()].sort((a, b) => b.bytes - a.bytes) : [];
    return { of: at, depthLeft: parts.length ? left : 0, parts: parts.map((each) => wrap(each, left - 1)) };
  };
  return d3.hierarchy(wrap(root, depth), children).sum((each) => (each.depthLeft > 0 ? 0 : each.of.bytes));
}

function drawTreemap(holder, root, onZoom) {
  const width = holder.clientWidth;
  const height = holder.clientHeight;
  const layout = d3.treemap().size([width, height]).paddingOuter(3).paddingTop((each) => (each.children ? 20 : 0)).paddingInner(1).round(true);
  const tree = layout(hierarchy(root, 3));
  const tiles = tree.descendants().filter((each) => each.depth > 0 && each.x1 - each.x0 >= 3 && each.y1 - each.y0 >= 3);
  return place(holder, tiles, root, onZoom, (each) => each.children && each.children.length > 0);
}

function drawFlame(holder, root, onZoom) {
  const row = 21;
  const tree = hierarchy(root, 60);
  const depth = tree.height + 1;
  holder.style.height = `${Math.max(depth * row + 4, 60)}px`;
  d3.partition().size([holder.clientWidth, depth * row])(tree);
  const tiles = tree.descendants().filter((each) => each.x1 - each.x0 >= 2);
  return place(holder, tiles, root, onZoom, () => false);
}

// -> how many tiles were too small, or too many, to be drawn
function place(holder, tiles, root, onZoom, isGroup) {
  const shown = tiles.length > MOST_TILES ? [...tiles].sort((a, b) => b.value - a.value).slice(0, MOST_TILES).sort((a, b) => a.depth - b.depth) : tiles;
  const fragment = document.createDocumentFragment();
  shown.forEach((each, index) => {
    const at = each.data.of;
    const told = `${at.name}: ${size(at.bytes)}, ${percent(at.bytes, root.bytes)}, ${counted(at.count, "block")}`;
    const tile = make("button", { type: "button", className: isGroup(each) ? "tile group" : "tile", title: told, tabIndex: index ? -1 : 0 });
    tile.setAttribute("aria-label", told);
    Object.assign(tile.style, {
      left: `${each.x0}px`, top: `${each.y0}px`, width: `${each.x1 - each.x0}px`, height: `${each.y1 - each.y0}px`,
    });
    if (!isGroup(each)) {
      const color = partColor(largestCategory(at));
      tile.style.backgroundColor = color;
      tile.style.color = inkOn(color);
    }
    if (each.x1 - each.x0 > 34 && each.y1 - each.y0 > 13) tile.append(make("span", { textContent: `${at.name} ${size(at.bytes)}` }));
    tile.addEventListener("click", () => { if (at.children.size) onZoom(at); });
    fragment.append(tile);
  });
  holder.replaceChildren(fragment);
  return tiles.length - shown.length;
}

// One tab stop for all tiles; the arrow keys go from one to the next.
function roving(holder, selector) {
  holder.addEventListener("keydown", (event) => {
    const moves = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
    const all = [...holder.querySelectorAll(selector)];
    const at = all.indexOf(document.activeElement);
    if (at < 0 || !all.length) return;
    let next = null;
    if (event.key in moves) next = all[(at + moves[event.key] + all.length) % all.length];
    else if (event.key === "Home") next = all[0];
    else if (event.key === "End") next = all[all.length - 1];
    if (!next) return;
    event.preventDefault();
    all[at].tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });
}
