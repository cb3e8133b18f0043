// The data of the charts: packing.py says how it is laid out.
async function unpack(text) {
  const raw = Uint8Array.from(atob(text), (sign) => sign.charCodeAt(0));
  const stream = new Blob([raw]).stream().pipeThrough(new DecompressionStream("deflate"));
  const buffer = await new Response(stream).arrayBuffer();
  const head = Number(new DataView(buffer).getBigUint64(0, true));
  const json = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, head)));
  const base = 8 + head;
  const kinds = { Int32Array, Float64Array, Uint8Array };
  const open = (value) => {
    if (Array.isArray(value) || value === null || typeof value !== "object") return value;
    if ("type" in value && "at" in value) return new kinds[value.type](buffer, base + value.at, value.length);
    return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, open(each)]));
  };
  json.devices = json.devices.map(open);
  for (const { at, blocks } of json.devices) {
    blocks.since = Int32Array.from(blocks.birth, (event) => firstFrom(at, event));
    blocks.until = Int32Array.from(blocks.death, (event) => firstFrom(at, event));
  }
  return json;
}

// The first of the moments that is not before an event.
function firstFrom(at, event) {
  let low = 0;
  let high = at.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (at[middle] < event) low = middle + 1;
    else high = middle;
  }
  return low;
}

// From the bottom of the stack: what lives longest first.
const STACKING = [
  "parameter", "buffer", "optimizer_state", "gradient", "kv_cache", "input", "autocast_cache", "communication",
  "workspace", "activation", "temporary", "unknown",
];

function stackedCategories(device) {
  return STACKING.filter((key) => key in device.categories);
}

// "event 1,204 · step 2, backward"
function momentText(device, index) {
  const event = device.at[index];
  if (device.events === 0) return "at the dump";
  const parts = [event < 0 ? "before the first event" : `event ${event.toLocaleString("en")}`];
  const when = [device.step[index] ? `step ${device.step[index]}` : "", device.phases[device.phase[index]]];
  const told = when.filter((word) => word && word !== "other").join(", ");
  if (told) parts.push(told);
  return parts.join(" · ");
}

function totalAt(device, index) {
  let total = 0;
  for (const column of Object.values(device.categories)) total += column[index];
  return total;
}

// Blocks alive at a moment, as row numbers.
function aliveAt(device, index) {
  const { since, until } = device.blocks;
  const rows = [];
  for (let row = 0; row < since.length; row += 1) {
    if (since[row] <= index && index < until[row]) rows.push(row);
  }
  return rows;
}

// Bytes and blocks of each origin at a moment: [{origin, bytes, count}].
function aliveByOrigin(device, rows) {
  const { origin, size: bytes, origins } = device.blocks;
  const sums = new Float64Array(origins.length);
  const counts = new Int32Array(origins.length);
  for (const row of rows) {
    sums[origin[row]] += bytes[row];
    counts[origin[row]] += 1;
  }
  const found = [];
  origins.forEach(([category, exact, module, place, stack], index) => {
    if (counts[index]) found.push({ category, exact, module, place, stack, bytes: sums[index], count: counts[index] });
  });
  return found;
}

function placeText(data, place) {
  if (place < 0) return "no Python frame";
  const [file, line, name] = data.frames[place];
  return `${line ? `${file}:${line}` : file}${name ? ` in ${name}` : ""}`;
}
