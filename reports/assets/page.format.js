// Numbers and names as the text of the report writes them (diagnosers/text.py).
const GIB = 2 ** 30;

function size(count) {
  for (const [unit, scale, digits] of [["GiB", GIB, 2], ["MiB", 2 ** 20, 1], ["KiB", 2 ** 10, 1]]) {
    if (Math.abs(count) >= scale) return `${(count / scale).toFixed(digits)} ${unit}`;
  }
  return `${count} bytes`;
}

function percent(part, whole) {
  if (!whole) return "";
  const value = (100 * part) / whole;
  if (value > 0 && value < 0.05) return "<0.1 %";
  return value >= 9.95 || value === 0 ? `${value.toFixed(0)} %` : `${value.toFixed(1)} %`;
}

function counted(number, what) {
  return `${number.toLocaleString("en")} ${what}${number === 1 ? "" : "s"}`;
}

// An element with properties, data of the snapshot only ever as its text.
function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

function byId(id) {
  return document.getElementById(id);
}

function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function partColor(key) {
  return css(`--part-${key}`) || "#888";
}

// Black or white, whichever reads better on `color` (relative luminance as WCAG has it).
function inkOn(color) {
  const hex = color.replace("#", "");
  const [r, g, b] = [0, 2, 4].map((at) => {
    const value = parseInt(hex.slice(at, at + 2), 16) / 255;
    return value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.18 ? "#000000" : "#ffffff";
}
