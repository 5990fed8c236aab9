// Fingers, mouse, wheel and keys on the map, told as moves: hover, move, zoom, press, step.

export function followFingers(canvas, { hover, move, zoom, press, leave }) {
  const pointers = new Map();
  let moved = 0;
  const spot = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    canvas.setPointerCapture(event.pointerId);
    if (!pointers.size) moved = 0;
    pointers.set(event.pointerId, spot(event));
  });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = spot(event),
      before = pointers.get(event.pointerId);
    if (!before) return hover(x, y);
    moved += Math.hypot(x - before[0], y - before[1]);
    if (pointers.size === 2) {
      const other = [...pointers].find(([id]) => id !== event.pointerId)[1];
      const ratio =
        Math.hypot(x - other[0], y - other[1]) / (Math.hypot(before[0] - other[0], before[1] - other[1]) || 1);
      zoom(ratio, (x + other[0]) / 2, (y + other[1]) / 2);
    } else if (moved > 4) {
      canvas.classList.add("is-dragged");
      move(x - before[0], y - before[1]);
    }
    pointers.set(event.pointerId, [x, y]);
  });
  const release = (event) => {
    if (event.type === "pointerup" && pointers.size === 1 && pointers.has(event.pointerId) && moved <= 4) {
      press(...spot(event), event.pointerType === "touch");
    }
    pointers.delete(event.pointerId);
    canvas.classList.remove("is-dragged");
  };
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("pointerleave", () => {
    if (!pointers.size) leave();
  });
  canvas.addEventListener("blur", leave);
  canvas.addEventListener(
    "wheel",
    (event) => {
      event.preventDefault();
      zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0015)), ...spot(event));
    },
    { passive: false },
  );
}

export function followKeys(canvas, { step, zoom, fit, enter, escape }) {
  const keys = {
    ArrowRight: () => step(1, 0),
    ArrowLeft: () => step(-1, 0),
    ArrowDown: () => step(0, 1),
    ArrowUp: () => step(0, -1),
    Enter: enter,
    " ": enter,
    Escape: escape,
    "+": () => zoom(1.5),
    "=": () => zoom(1.5),
    "-": () => zoom(1 / 1.5),
    0: fit,
  };
  canvas.addEventListener("keydown", (event) => {
    if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    keys[event.key]();
  });
}
