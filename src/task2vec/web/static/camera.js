// Where one looks from: moving, zooming, and the way from places of the map to places of the screen.

export class Camera {
  constructor() {
    Object.assign(this, { x: 0, y: 0, scale: 1, whole: 1, width: 1, height: 1 });
  }

  get isWhole() {
    return this.scale === this.whole;
  }

  where({ x, y }) {
    return [this.width / 2 + (x - this.x) * this.scale, this.height / 2 - (y - this.y) * this.scale];
  }

  /** Everything in sight, with a margin for names. */
  fit(points) {
    const span = (values) =>
      values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
    if (!points.length) return;
    const [left, right] = span(points.map(({ x }) => x)),
      [bottom, top] = span(points.map(({ y }) => y));
    this.x = (left + right) / 2;
    this.y = (bottom + top) / 2;
    const margin = Math.min(110, this.width / 5),
      across = (this.width - margin) / (right - left),
      up = (this.height - 90) / (top - bottom);
    const scale = Math.min(across, up);
    this.scale = this.whole = Number.isFinite(scale) && scale > 0 ? scale : 1;
  }

  /** Nearer by a factor; what lies under (left, top) stays there. */
  zoom(factor, left = this.width / 2, top = this.height / 2) {
    const scale = Math.max(this.whole / 4, Math.min(this.whole * 400, this.scale * factor));
    const right = left - this.width / 2,
      up = this.height / 2 - top;
    this.x += right / this.scale - right / scale;
    this.y += up / this.scale - up / scale;
    this.scale = scale;
  }

  move(right, down) {
    this.x -= right / this.scale;
    this.y += down / this.scale;
  }

  /** Brings a point into sight if it is outside. */
  reveal(point, edge = 14) {
    const [left, top] = this.where(point);
    if (left < edge || top < edge || left > this.width - edge || top > this.height - edge)
      [this.x, this.y] = [point.x, point.y];
  }
}
