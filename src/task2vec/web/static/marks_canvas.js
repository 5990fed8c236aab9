// The same marks by the plain canvas, where there is no WebGL; also the small ones of the legend.

const turn = (corners, start) =>
  Array.from({ length: corners }, (_, k) => {
    const angle = start + (2 * Math.PI * k) / corners;
    return [Math.sin(angle), -Math.cos(angle)];
  });
const PLUS = [
  [-0.35, -1],
  [0.35, -1],
  [0.35, -0.35],
  [1, -0.35],
  [1, 0.35],
  [0.35, 0.35],
  [0.35, 1],
  [-0.35, 1],
  [-0.35, 0.35],
  [-1, 0.35],
  [-1, -0.35],
  [-0.35, -0.35],
];
const CORNERS = {
  square: turn(4, Math.PI / 4),
  up: turn(3, 0),
  diamond: turn(4, 0),
  down: turn(3, Math.PI),
  hexagon: turn(6, Math.PI / 6),
  plus: PLUS,
  cross: PLUS.map(([x, y]) => [(x - y) * Math.SQRT1_2, (x + y) * Math.SQRT1_2]),
};

/** The outline of a mark as the current path. */
export function trace(pen, mark, x, y, size) {
  pen.beginPath();
  if (!CORNERS[mark]) pen.arc(x, y, size * 0.95, 0, 2 * Math.PI);
  else
    CORNERS[mark].forEach(([right, down], k) =>
      pen[k ? "lineTo" : "moveTo"](x + right * size * 1.1, y + down * size * 1.1),
    );
  pen.closePath();
}

/** What draws on `canvas` without WebGL. */
export function startCanvas(canvas) {
  const pen = canvas.getContext("2d");
  let marks = [];

  function paint({ view, width, height, ratio, reach, rim, ink }) {
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.lineWidth = 1;
    for (const { x, y, colour, mark, isRinged } of marks) {
      const left = width / 2 + (x - view.x) * view.scale,
        top = height / 2 - (y - view.y) * view.scale;
      if (left < -20 || top < -20 || left > width + 20 || top > height + 20) continue;
      trace(pen, mark, left, top, reach);
      pen.fillStyle = colour;
      pen.strokeStyle = rim;
      pen.fill();
      pen.stroke();
      if (!isRinged) continue;
      pen.beginPath();
      pen.arc(left, top, reach * 1.75, 0, 2 * Math.PI);
      pen.strokeStyle = ink;
      pen.stroke();
    }
  }

  return {
    name: "canvas",
    load: (list) => {
      marks = list;
    },
    paint,
  };
}
