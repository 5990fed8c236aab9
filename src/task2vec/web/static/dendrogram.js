// The tree above a matrix: merges as SciPy's linkage tells them become lines.

/** The lines of the tree as [height of child, its place, height of parent, place of the other]; heights from 0 to 1. */
export function layTree(merges, order) {
  const places = new Map(order.map((leaf, place) => [leaf, { at: place + 0.5, height: 0 }]));
  const top = merges.reduce((most, [, , height]) => Math.max(most, height), 0) || 1;
  return merges.map(([a, b, height], number) => {
    const [first, second] = [places.get(a), places.get(b)];
    const node = { at: (first.at + second.at) / 2, height: height / top };
    places.set(order.length + number, node);
    return { first, second, height: node.height };
  });
}

/** Draws it lying on its side: leaves at `right`, the root at `left`. */
export function drawTree(pen, tree, { left, right, top, cell, colour }) {
  const x = (height) => right - 3 - height * (right - left - 4),
    y = (at) => top + at * cell;
  pen.strokeStyle = colour;
  pen.lineWidth = 1;
  pen.beginPath();
  for (const { first, second, height } of tree) {
    pen.moveTo(x(first.height), y(first.at));
    pen.lineTo(x(height), y(first.at));
    pen.lineTo(x(height), y(second.at));
    pen.lineTo(x(second.height), y(second.at));
  }
  pen.stroke();
}
