// Numbers as they are read.

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

export const count = (value) => (isNumber(value) ? value.toLocaleString("en") : null);
export const percent = (value, digits = 1) => (isNumber(value) ? `${(100 * value).toFixed(digits)} %` : null);
export const range = (low, high) =>
  isNumber(low) && isNumber(high) ? `${(100 * low).toFixed(1)} to ${(100 * high).toFixed(1)} %` : null;
export const origin = (value) => (value === "measured by us" ? "comes with task2vec" : `your ${value}`);
export const distance = (value) => (isNumber(value) ? value.toFixed(3) : null);
export const short = (value) => (isNumber(value) ? Number(value.toPrecision(3)).toString() : null);
export const points = (value) =>
  isNumber(value) ? `${value >= 0 ? "+" : "−"}${(100 * Math.abs(value)).toFixed(1)}` : null;

export function millions(value) {
  if (!isNumber(value)) return null;
  return value >= 1e6 ? `${(value / 1e6).toFixed(1)} M` : count(value);
}

export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;

export const cut = (text, longest) =>
  [...text].length > longest ? [...text].slice(0, longest - 1).join("") + "…" : text;
