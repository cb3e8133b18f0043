// Memory over time: opaque steps drawn from the top of the stack down, so that each hides what lies under it.
function timeChart(holder, device, data, onPick) {
  const keys = stackedCategories(device);
  const heights = [];
  let below = new Float64Array(device.at.length);
  for (const key of keys) {
    below = below.map((value, index) => value + device.categories[key][index]);
    heights.push(below);
  }
  const highest = Math.max(...heights[heights.length - 1] ?? [0], 0);
  const reserved = device.reserved.reduce((most, value) => Math.max(most, value), 0);
  const room = device.capacity === null ? null : device.capacity - (device.outside ?? 0);
  const showRoom = room !== null && room < 3 * Math.max(highest, reserved);
  const top = Math.max(highest, reserved, showRoom ? room : 0, 1) * 1.04;
  const stepped = uPlot.paths.stepped({ align: 1 });
  const points = { show: false };
  const state = { index: device.moment, dragged: false };

  const options = {
    width: holder.clientWidth || 800,
    height: 330,
    legend: { show: false },
    cursor: { y: false, points, drag: { x: true, y: false, uni: 4 } },
    scales: { x: { time: false }, y: { range: [0, top] } },
    axes: [
      { stroke: css("--dim"), grid: { show: false }, ticks: { stroke: css("--edge") }, label: "event", labelSize: 18, size: 38, space: 75,
        values: (_, splits) => splits.map((value) => value.toLocaleString("en")) },
      { stroke: css("--dim"), grid: { stroke: css("--edge"), width: 0.5 }, ticks: { stroke: css("--edge") }, size: 76,
        splits: () => niceSplits(top), values: (_, splits) => splits.map((value) => (value ? size(value) : "0")) },
    ],
    series: [{}],
    hooks: { draw: [(plot) => drawMarks(plot, device, state)], ready: [], setSelect: [() => { state.dragged = true; }] },
  };
  const columns = [Array.from(device.at)];
  for (let layer = keys.length - 1; layer >= 0; layer -= 1) {
    const color = partColor(keys[layer]);
    options.series.push({ stroke: color, fill: color, width: 0, paths: stepped, points });
    columns.push(heights[layer]);
  }
  options.series.push({ stroke: css("--ink"), width: 1.4, paths: stepped, points });
  columns.push(device.reserved);
  if (showRoom) {
    options.series.push({ stroke: css("--bad"), width: 1.4, dash: [7, 5], points });
    columns.push(new Float64Array(device.at.length).fill(room));
  }
  const plot = new uPlot(options, columns, holder);
  plot.over.addEventListener("mousedown", () => { state.dragged = false; });
  plot.over.addEventListener("click", () => {
    if (!state.dragged && plot.cursor.idx !== null && plot.cursor.idx !== undefined) onPick(plot.cursor.idx);
  });
  return {
    plot,
    keys,
    showRoom,
    room,
    select(index) {
      state.index = index;
      plot.redraw(false);
    },
    whole() {
      plot.setScale("x", { min: device.at[0], max: device.at[device.at.length - 1] });
    },
    resize() {
      plot.setSize({ width: holder.clientWidth || 800, height: 330 });
    },
    destroy() {
      plot.destroy();
    },
  };
}

// Round numbers of bytes: 1, 2 or 5 times a power of two units, about five of them.
function niceSplits(top) {
  const unit = top >= GIB ? GIB : top >= 2 ** 20 ? 2 ** 20 : top >= 1024 ? 1024 : 1;
  const raw = top / unit / 5;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((each) => each * power >= raw) * power * unit;
  const found = [];
  for (let value = 0; value <= top; value += step) found.push(value);
  return found;
}

// Where steps begin, and the moment that is shown below.
function drawMarks(plot, device, state) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width + 3 * devicePixelRatio, bbox.height);
  ctx.clip();
  const starts = [];
  for (let index = 1; index < device.at.length; index += 1) {
    if (device.step[index] !== device.step[index - 1] && device.step[index]) starts.push(index);
  }
  const visible = starts.filter((index) => device.at[index] >= plot.scales.x.min && device.at[index] <= plot.scales.x.max);
  ctx.textAlign = "left";
  ctx.textBaseline = "alphabetic";
  ctx.font = `${11 * devicePixelRatio}px sans-serif`;
  if (visible.length <= 30) {
    for (const index of visible) {
      const x = plot.valToPos(device.at[index], "x", true);
      line(ctx, x, bbox, css("--ink"), 0.6, [2, 4]);
      if (x < bbox.left + bbox.width - 50 * devicePixelRatio) label(ctx, `step ${device.step[index]}`, x + 4 * devicePixelRatio, bbox.top + 13 * devicePixelRatio);
    }
  }
  const x = plot.valToPos(device.at[state.index], "x", true);
  line(ctx, x, bbox, css("--ground"), 4, []);
  line(ctx, x, bbox, css(device.failed && state.index === device.moment ? "--bad" : "--accent"), 2, []);
  ctx.restore();
}

function line(ctx, x, bbox, color, width, dash) {
  ctx.strokeStyle = color;
  ctx.lineWidth = width * devicePixelRatio;
  ctx.setLineDash(dash.map((each) => each * devicePixelRatio));
  ctx.beginPath();
  ctx.moveTo(x, bbox.top);
  ctx.lineTo(x, bbox.top + bbox.height);
  ctx.stroke();
}

// Text with a rim of the page's ground: it stays readable on any colour.
function label(ctx, text, x, y) {
  ctx.setLineDash([]);
  ctx.lineJoin = "round";
  ctx.lineWidth = 3 * devicePixelRatio;
  ctx.strokeStyle = css("--ground");
  ctx.strokeText(text, x, y);
  ctx.fillStyle = css("--ink");
  ctx.fillText(text, x, y);
}
