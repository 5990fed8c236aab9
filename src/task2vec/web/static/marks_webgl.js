// The marks of the map by the graphics card: thousands of points in one call.

import {
  createBufferInfoFromArrays,
  createProgramInfo,
  drawBufferInfo,
  setBuffersAndAttributes,
  setUniforms,
} from "./vendor/twgl.js";
import { MARKS, channels } from "./looks.js";

const VERTEX = `#version 300 es
in vec2 place; in vec3 colour; in float mark; in float ring;
uniform vec2 centre; uniform vec2 scale; uniform float reach; uniform float extent;
out vec3 paint; flat out int shape; out float ringed;
void main() {
  gl_Position = vec4((place - centre) * scale, 0.0, 1.0);
  gl_PointSize = 2.0 * reach * extent;
  paint = colour; shape = int(mark + 0.5); ringed = ring;
}`;

// Distances to the edge of each mark, in units of the mark's radius: negative inside.
const FRAGMENT = `#version 300 es
precision highp float;
in vec3 paint; flat in int shape; in float ringed;
uniform float reach; uniform float extent; uniform vec4 rim; uniform vec3 ink;
out vec4 result;
float plus(vec2 p) { p = abs(p); return min(max(p.x - 0.38, p.y - 1.05), max(p.x - 1.05, p.y - 0.38)); }
float wedge(vec2 p) { return max(p.y - 0.62, dot(vec2(abs(p.x), -p.y), vec2(0.866, 0.5)) - 0.55); }
float edge(vec2 p) {
  if (shape == 1) return max(abs(p.x), abs(p.y)) - 0.82;
  if (shape == 2) return wedge(p);
  if (shape == 3) return (abs(p.x) + abs(p.y) - 1.15) * 0.7071;
  if (shape == 4) return wedge(vec2(p.x, -p.y));
  if (shape == 5) return plus(p);
  if (shape == 6) return plus(vec2(p.x - p.y, p.x + p.y) * 0.7071);
  if (shape == 7) return max(abs(p.x) * 0.866 + abs(p.y) * 0.5, abs(p.y)) - 0.92;
  return length(p) - 0.95;
}
void main() {
  vec2 p = (gl_PointCoord * 2.0 - 1.0) * extent;
  float soft = 0.7 / reach, d = edge(p);
  float body = smoothstep(soft, -soft, d), border = smoothstep(soft, -soft, abs(d) - soft) * rim.a;
  float hoop = smoothstep(soft, -soft, abs(length(p) - 1.75) - 1.2 * soft) * ringed;
  vec4 painted = vec4(paint, 1.0) * body;
  painted = mix(painted, vec4(rim.rgb, 1.0), border);
  result = painted + vec4(ink, 1.0) * hoop * (1.0 - painted.a);
  if (result.a < 0.01) discard;
}`;

const EXTENT = 2.2;

/** What draws on `canvas`, or null where there is no WebGL. */
export function startWebgl(canvas, onRestored) {
  const gl = canvas.getContext("webgl2", { alpha: true, antialias: false, premultipliedAlpha: true });
  if (!gl) return null;
  let program = null,
    buffers = null,
    total = 0;
  const prepare = () => {
    program = createProgramInfo(gl, [VERTEX, FRAGMENT]);
    buffers = null;
  };
  prepare();
  canvas.addEventListener("webglcontextlost", (event) => event.preventDefault());
  canvas.addEventListener("webglcontextrestored", () => {
    prepare();
    onRestored();
  });

  function load(marks) {
    total = marks.length;
    buffers = total
      ? createBufferInfoFromArrays(gl, {
          place: { numComponents: 2, data: Float32Array.from(marks.flatMap(({ x, y }) => [x, y])) },
          colour: {
            numComponents: 3,
            data: Float32Array.from(marks.flatMap(({ colour }) => channels(colour).map((value) => value / 255))),
          },
          mark: { numComponents: 1, data: Float32Array.from(marks, ({ mark }) => Math.max(0, MARKS.indexOf(mark))) },
          ring: { numComponents: 1, data: Float32Array.from(marks, ({ isRinged }) => (isRinged ? 1 : 0)) },
        })
      : null;
  }

  function paint({ view, width, height, ratio, reach, rim, ink }) {
    gl.viewport(0, 0, canvas.width, canvas.height);
    gl.clearColor(0, 0, 0, 0);
    gl.clear(gl.COLOR_BUFFER_BIT);
    if (!buffers || gl.isContextLost()) return;
    gl.enable(gl.BLEND);
    gl.blendFunc(gl.ONE, gl.ONE_MINUS_SRC_ALPHA);
    gl.useProgram(program.program);
    setBuffersAndAttributes(gl, program, buffers);
    setUniforms(program, {
      centre: [view.x, view.y],
      scale: [(2 * view.scale) / width, (2 * view.scale) / height],
      reach: reach * ratio,
      extent: EXTENT,
      rim: [...channels(rim).map((value) => value / 255), 0.85],
      ink: channels(ink).map((value) => value / 255),
    });
    drawBufferInfo(gl, buffers, gl.POINTS, total);
  }

  return { name: "webgl", load, paint };
}
