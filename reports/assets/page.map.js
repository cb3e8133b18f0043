// The allocator's memory at the moment of the report, to scale: segments one after another, line by line like text.
const FREE = 255;
const OTHER = 254;
const MAP_ROWS = 18;
const ROW = 20;

function allocatorMap(canvas, readout, device, data) {
  const map = device.map;
  const total = map.bytes.reduce((sum, each) => sum + each, 0);
  const starts = new Float64Array(map.bytes.length);
  const first = new Int32Array(map.bytes.length + 1); // the first block of each segment
  map.bytes.reduce((at, bytes, index) => { starts[index] = at; return at + bytes; }, 0);
  map.owner.forEach((owner) => { first[owner + 1] += 1; });
  for (let index = 1; index < first.length; index += 1) first[index] += first[index - 1];
  let chosen = -1;

  function draw() {
    const ratio = devicePixelRatio || 1;
    const width = canvas.clientWidth;
    canvas.width = width * ratio;
    canvas.height = MAP_ROWS * ROW * ratio;
    const ctx = canvas.getContext("2d");
    ctx.scale(ratio, ratio);
    ctx.fillStyle = css("--ground");
    ctx.fillRect(0, 0, width, MAP_ROWS * ROW);
    const colors = map.kinds.map(partColor);
    const pixels = (MAP_ROWS * width) / total;
    for (let segment = 0; segment < starts.length; segment += 1) {
      let at = starts[segment] * pixels;
      for (let block = first[segment]; block < first[segment + 1]; block += 1) {
        const length = map.size[block] * pixels;
        const kind = map.kind[block];
        ctx.fillStyle = kind === FREE ? css("--part-free") : kind === OTHER ? partColor("rounding") : colors[kind];
        wrapped(width, at, length, (x, y, w) => ctx.fillRect(x, y + 1, w, ROW - 3));
        at += length;
      }
      outline(ctx, width, starts[segment] * pixels, map.bytes[segment] * pixels, segment);
    }
  }

  function outline(ctx, width, at, length, segment) {
    const mark = segment === chosen ? css("--accent") : map.pinned[segment] ? css("--pin") : css("--ground");
    ctx.fillStyle = mark;
    const thick = segment === chosen ? 3 : map.pinned[segment] ? 2 : 1;
    if (length < 2 * thick) return;
    wrapped(width, at, length, (x, y, w) => {
      if (segment !== chosen && !map.pinned[segment]) return;
      ctx.fillRect(x, y + 1, w, thick);
      ctx.fillRect(x, y + ROW - 2 - thick, w, thick);
    });
    wrapped(width, at, thick, (x, y, w) => ctx.fillRect(x, y + 1, w, ROW - 3));
    wrapped(width, at + length - thick, thick, (x, y, w) => ctx.fillRect(x, y + 1, w, ROW - 3));
  }

  // A stretch of the tape as rectangles, one for each line that it covers.
  function wrapped(width, at, length, fill) {
    let from = at;
    const end = at + length;
    while (from < end - 1e-6) {
      const row = Math.min(Math.floor(from / width + 1e-9), MAP_ROWS - 1);
      const stop = Math.min(end, (row + 1) * width);
      if (stop <= from) return;
      fill(from - row * width, row * ROW, stop - from);
      from = stop;
    }
  }

  function show(segment) {
    chosen = segment;
    draw();
    if (segment < 0) {
      readout.textContent = "";
      return;
    }
    let free = 0;
    let largest = 0;
    const sums = new Map();
    for (let block = first[segment]; block < first[segment + 1]; block += 1) {
      const kind = map.kind[block];
      if (kind === FREE) {
        free += map.size[block];
        largest = Math.max(largest, map.size[block]);
      } else {
        const key = kind === OTHER ? "not listed" : data.titles[map.kinds[kind]];
        sums.set(key, (sums.get(key) ?? 0) + map.size[block]);
      }
    }
    const held = [...sums].sort((a, b) => b[1] - a[1]).map(([key, bytes]) => `${size(bytes)} ${key}`);
    const parts = [
      `segment ${segment + 1} of ${starts.length} at 0x${map.address[segment].toString(16)}`, `${size(map.bytes[segment])}, ${map.pools[map.pool[segment]]}`,
      held.join(", "), free ? `${size(free)} free, the largest piece ${size(largest)}` : "full", map.pinned[segment] ? "pinned" : "",
    ];
    readout.textContent = parts.filter(Boolean).join(" · ");
  }

  canvas.onclick = (event) => {
    const row = Math.min(Math.floor(event.offsetY / ROW), MAP_ROWS - 1);
    const at = ((row * canvas.clientWidth + event.offsetX) / (MAP_ROWS * canvas.clientWidth)) * total;
    let segment = 0;
    while (segment + 1 < starts.length && starts[segment + 1] <= at) segment += 1;
    show(segment);
  };
  canvas.onkeydown = (event) => {
    const next = { ArrowRight: chosen + 1, ArrowDown: chosen + 1, ArrowLeft: chosen - 1, ArrowUp: chosen - 1, Home: 0, End: starts.length - 1 }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    show(Math.max(0, Math.min(starts.length - 1, next)));
  };
  draw();
  return { draw, clear: () => show(-1), total, segments: starts.length, pinned: map.pinned.reduce((sum, each) => sum + each, 0) };
}
