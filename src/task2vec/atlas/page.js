"use strict";
// Everything here is drawn from the data in this file. Names come from strangers: they become text, never markup.
(() => {
  const { tasks, groups } = JSON.parse(document.getElementById("data").textContent);
  const get = (id) => document.getElementById(id);
  const canvas = get("map"), pen = canvas.getContext("2d"), tip = get("tip");
  const stage = get("stage"), search = get("search"), found = get("found");
  const view = { x: 0, y: 0, scale: 1 };
  const hidden = new Set();
  let whole = 1, over = -1, chosen = -1, frame = 0, reach = 8;

  const make = (tag, text, name) => {
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text;
    if (name) element.className = name;
    return element;
  };
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const isShown = (index) => !hidden.has(tasks[index].group);
  const where = (task) => [
    canvas.clientWidth / 2 + (task.x - view.x) * view.scale, canvas.clientHeight / 2 - (task.y - view.y) * view.scale,
  ];

  // --- marks, the same as in the printed pictures -------------------------------------------------------------------
  const ring = (corners, turn) => Array.from({ length: corners }, (_, k) => {
    const angle = turn + 2 * Math.PI * k / corners;
    return [Math.sin(angle), -Math.cos(angle)];
  });
  const plus = [[-.35, -1], [.35, -1], [.35, -.35], [1, -.35], [1, .35], [.35, .35], [.35, 1], [-.35, 1], [-.35, .35],
    [-1, .35], [-1, -.35], [-.35, -.35]];
  const marks = {
    s: ring(4, Math.PI / 4), "^": ring(3, 0), D: ring(4, 0), v: ring(3, Math.PI), h: ring(6, 0), P: plus,
    X: plus.map(([x, y]) => [(x - y) * Math.SQRT1_2, (x + y) * Math.SQRT1_2]),
  };
  function trace(ink, mark, x, y, size) {
    ink.beginPath();
    if (!marks[mark]) ink.arc(x, y, size * 0.95, 0, 2 * Math.PI);
    else marks[mark].forEach(([right, down], k) => ink[k ? "lineTo" : "moveTo"](x + right * size * 1.1, y + down * size * 1.1));
    ink.closePath();
  }

  // --- drawing ------------------------------------------------------------------------------------------------------
  function draw() {
    frame = 0;
    const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    const paper = colour("--paper"), ink = colour("--ink"), rim = colour("--rim");
    reach = Math.max(3, Math.min(7, Math.min(width, height) / 70, 90 / Math.sqrt(tasks.length) * Math.sqrt(view.scale / whole)));
    const inside = [];
    tasks.forEach((task, index) => {
      const [x, y] = where(task);
      if (isShown(index) && x > -20 && y > -20 && x < width + 20 && y < height + 20) inside.push([index, x, y]);
    });
    if (chosen >= 0) drawLines(ink);
    pen.lineWidth = 1;
    for (const [index, x, y] of inside) {
      const { group, placed } = tasks[index];
      trace(pen, groups[group].mark, x, y, reach * (index === over ? 1.3 : 1));
      pen.fillStyle = groups[group].colour;
      pen.strokeStyle = rim;
      pen.fill();
      pen.stroke();
      if (placed || index === chosen || index === over) {
        pen.beginPath();
        pen.arc(x, y, reach * 1.9, 0, 2 * Math.PI);
        pen.strokeStyle = ink;
        pen.stroke();
      }
    }
    drawNames(inside, paper, ink);
    canvas.dataset.drawn = inside.length;
  }
  function drawLines(ink) {
    const [x, y] = where(tasks[chosen]);
    pen.strokeStyle = ink;
    pen.lineWidth = 1.2;
    tasks[chosen].nearest.filter(([index]) => isShown(index)).forEach(([index], rank) => {
      pen.globalAlpha = Math.max(0.25, 0.85 - 0.12 * rank);
      pen.beginPath();
      pen.moveTo(x, y);
      pen.lineTo(...where(tasks[index]));
      pen.stroke();
    });
    pen.globalAlpha = 1;
  }
  function drawNames(inside, paper, ink) {
    // The chosen task and its neighbours are named first, then whoever finds room.
    const first = new Set([over, chosen, ...(chosen < 0 ? [] : tasks[chosen].nearest.map(([index]) => index))]);
    const order = [...inside.filter(([index]) => first.has(index)), ...inside.filter(([index]) => !first.has(index))];
    const taken = inside.length > 600 ? [] : inside.map(([, x, y]) => [x - reach, y - reach, x + reach, y + reach]);
    pen.font = "12px system-ui, sans-serif";
    pen.textBaseline = "middle";
    pen.lineWidth = 3;
    pen.lineJoin = "round";
    for (const [index, x, y] of order.slice(0, inside.length > 600 ? first.size : 300)) {
      const name = tasks[index].name.length > 28 ? tasks[index].name.slice(0, 27) + "…" : tasks[index].name;
      const wide = pen.measureText(name).width, gap = reach + 4;
      const spot = [[x + gap, y], [x - gap - wide, y], [x - wide / 2, y - gap - 5], [x - wide / 2, y + gap + 5]]
        .find(([left, middle]) => left >= 2 && left + wide <= canvas.clientWidth - 2 && !taken.some((box) =>
          box[0] < left + wide && box[2] > left && box[1] < middle + 7 && box[3] > middle - 7))
        ?? (index === over || index === chosen ? [x + gap, y] : null);
      if (!spot) continue;
      taken.push([spot[0], spot[1] - 7, spot[0] + wide, spot[1] + 7]);
      pen.strokeStyle = paper;
      pen.strokeText(name, ...spot);
      pen.fillStyle = ink;
      pen.fillText(name, ...spot);
    }
  }
  const redraw = () => { frame ||= requestAnimationFrame(draw); };

  // --- words --------------------------------------------------------------------------------------------------------
  function tell(task) {
    const list = make("dl");
    const add = (word, value) => { if (value !== null && value !== undefined) list.append(make("dt", word), make("dd", value)); };
    add("group", groups[task.group].name || null);
    add("images", task.images?.toLocaleString("en"));
    add("classes", task.classes?.toLocaleString("en"));
    add("error", task.error === null ? null : `${(100 * task.error).toFixed(1)} %`);
    add("norm", task.norm === null ? null : task.norm.toPrecision(3));
    if (task.placed) add("on this map", "placed afterwards");
    return list;
  }
  function showTip(index, x, y) {
    over = index;
    canvas.classList.toggle("is-over", index >= 0);
    tip.hidden = index < 0;
    if (index >= 0) {
      const task = tasks[index];
      const near = task.nearest.slice(0, 3).map(([other, distance]) => `${tasks[other].name} (${distance.toFixed(3)})`);
      tip.replaceChildren(make("div", task.name, "name"), tell(task));
      if (near.length) tip.append(make("div", `nearest: ${near.join(", ")}`, "word"));
      const left = Math.min(x + 14, stage.clientWidth - tip.offsetWidth - 6);
      const top = y + 14 + tip.offsetHeight > stage.clientHeight ? y - tip.offsetHeight - 14 : y + 14;
      tip.style.left = `${Math.max(4, left)}px`;
      tip.style.top = `${Math.max(4, top)}px`;
    }
    redraw();
  }
  function choose(index) {
    chosen = index;
    const panel = get("chosen");
    panel.replaceChildren();
    if (index >= 0) {
      const task = tasks[index], list = make("ul", undefined, "nearest");
      for (const [other, distance] of task.nearest) {
        const row = make("li"), button = make("button", tasks[other].name, "word");
        button.type = "button";
        button.addEventListener("click", () => goTo(other));
        row.append(button, make("span", distance.toFixed(3)));
        list.append(row);
      }
      panel.append(make("h2", task.name, "name"), tell(task), make("h3", "nearest tasks (distance)"), list);
    }
    redraw();
  }
  function goTo(index) {
    hidden.delete(tasks[index].group);
    markLegend();
    choose(index);
    const [x, y] = where(tasks[index]), edge = 40;
    if (x < edge || y < edge || x > canvas.clientWidth - edge || y > canvas.clientHeight - edge) {
      view.x = tasks[index].x;
      view.y = tasks[index].y;
    }
    showTip(-1);
  }

  // --- legend and search --------------------------------------------------------------------------------------------
  const switches = groups.map((group, number) => {
    const button = make("button"), swatch = make("canvas"), ratio = 2;
    button.type = "button";
    swatch.width = swatch.height = 16 * ratio;
    const ink = swatch.getContext("2d");
    trace(ink, group.mark, 16, 16, 11);
    ink.fillStyle = group.colour;
    ink.fill();
    const count = tasks.filter((task) => task.group === number).length;
    button.append(swatch, make("span", `${group.name || "all tasks"} (${count})`, "word"));
    button.addEventListener("click", () => {
      hidden.has(number) ? hidden.delete(number) : hidden.add(number);
      if (chosen >= 0 && !isShown(chosen)) choose(-1);
      markLegend();
      showTip(-1);
    });
    return button;
  });
  const markLegend = () => switches.forEach((button, number) => button.setAttribute("aria-pressed", String(!hidden.has(number))));
  get("legend").append(...switches);
  markLegend();

  search.addEventListener("input", () => {
    const word = search.value.trim().toLowerCase();
    const hits = !word ? [] : tasks.map((task, index) => index).filter((index) =>
      `${tasks[index].name} ${groups[tasks[index].group].name}`.toLowerCase().includes(word));
    found.replaceChildren(...hits.slice(0, 50).map((index) => {
      const row = make("li"), button = make("button", tasks[index].name, "word");
      button.type = "button";
      button.addEventListener("click", () => { found.hidden = true; goTo(index); canvas.focus(); });
      row.append(button);
      return row;
    }));
    if (word && !hits.length) found.append(make("li", "no such task"));
    found.hidden = !word;
  });
  search.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === "ArrowDown") {
      const button = found.querySelector("button");
      if (button) event.key === "Enter" ? button.click() : button.focus();
      event.preventDefault();
    }
  });
  get("finder").addEventListener("keydown", (event) => { if (event.key === "Escape") found.hidden = true; });
  document.addEventListener("pointerdown", (event) => { if (!get("finder").contains(event.target)) found.hidden = true; });

  // --- moving about -------------------------------------------------------------------------------------------------
  function fit() {
    const xs = tasks.map((task) => task.x), ys = tasks.map((task) => task.y);
    const low = (values) => values.reduce((a, b) => Math.min(a, b)), high = (values) => values.reduce((a, b) => Math.max(a, b));
    view.x = (low(xs) + high(xs)) / 2;
    view.y = (low(ys) + high(ys)) / 2;
    const across = (canvas.clientWidth - 80) / (high(xs) - low(xs)), up = (canvas.clientHeight - 80) / (high(ys) - low(ys));
    const scale = Math.min(across, up);
    view.scale = whole = Number.isFinite(scale) && scale > 0 ? scale : 1;
    redraw();
  }
  function zoom(factor, x = canvas.clientWidth / 2, y = canvas.clientHeight / 2) {
    const scale = Math.max(whole / 4, Math.min(whole * 400, view.scale * factor));
    const right = x - canvas.clientWidth / 2, up = canvas.clientHeight / 2 - y;
    view.x += right / view.scale - right / scale;
    view.y += up / view.scale - up / scale;
    view.scale = scale;
    redraw();
  }
  function nearestTo(x, y, limit) {
    let best = -1, least = limit * limit;
    tasks.forEach((task, index) => {
      if (!isShown(index)) return;
      const [left, top] = where(task), apart = (left - x) ** 2 + (top - y) ** 2;
      if (apart < least) [best, least] = [index, apart];
    });
    return best;
  }
  const pointers = new Map();
  let moved = 0;
  const spot = (event) => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    if (!pointers.size) moved = 0;
    pointers.set(event.pointerId, spot(event));
  });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = spot(event), before = pointers.get(event.pointerId);
    if (!before) { showTip(nearestTo(x, y, reach + 6), x, y); return; }
    moved += Math.hypot(x - before[0], y - before[1]);
    if (pointers.size === 2) {
      const other = [...pointers].find(([id]) => id !== event.pointerId)[1];
      const ratio = Math.hypot(x - other[0], y - other[1]) / (Math.hypot(before[0] - other[0], before[1] - other[1]) || 1);
      zoom(ratio, (x + other[0]) / 2, (y + other[1]) / 2);
    } else if (moved > 4) {
      canvas.classList.add("is-dragged");
      view.x -= (x - before[0]) / view.scale;
      view.y += (y - before[1]) / view.scale;
      showTip(-1);
    }
    pointers.set(event.pointerId, [x, y]);
  });
  const release = (event) => {
    if (event.type === "pointerup" && pointers.size === 1 && moved <= 4) {
      const [x, y] = spot(event), index = nearestTo(x, y, reach + (event.pointerType === "touch" ? 16 : 6));
      choose(index);
      if (event.pointerType === "touch") showTip(index, x, y);
    }
    pointers.delete(event.pointerId);
    canvas.classList.remove("is-dragged");
  };
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("pointerleave", () => { if (!pointers.size) showTip(-1); });
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0015)), ...spot(event));
  }, { passive: false });
  get("nearer").addEventListener("click", () => zoom(1.5));
  get("farther").addEventListener("click", () => zoom(1 / 1.5));
  get("whole").addEventListener("click", fit);

  function step(right, down) {
    const start = over >= 0 ? over : chosen, shown = tasks.map((task, index) => index).filter(isShown);
    if (!shown.length) return;
    let next = shown[0];
    if (start >= 0) {
      const [x, y] = where(tasks[start]);
      let least = Infinity;
      for (const index of shown) {
        const [left, top] = where(tasks[index]), along = (left - x) * right + (top - y) * down;
        const aside = Math.abs((left - x) * down) + Math.abs((top - y) * right);
        if (index !== start && along > 0 && along + 2 * aside < least) [next, least] = [index, along + 2 * aside];
      }
      if (least === Infinity) return;
    }
    showTip(next, ...where(tasks[next]));
  }
  const keys = {
    ArrowRight: () => step(1, 0), ArrowLeft: () => step(-1, 0), ArrowDown: () => step(0, 1), ArrowUp: () => step(0, -1),
    Enter: () => choose(over), " ": () => choose(over), Escape: () => { choose(-1); showTip(-1); },
    "+": () => zoom(1.5), "=": () => zoom(1.5), "-": () => zoom(1 / 1.5), 0: fit,
  };
  canvas.addEventListener("keydown", (event) => {
    if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    keys[event.key]();
  });
  canvas.addEventListener("blur", () => showTip(-1));

  let size = "";
  new ResizeObserver(() => {
    const now = `${canvas.clientWidth} ${canvas.clientHeight}`, wasWhole = view.scale === whole;
    if (now === size) return;
    wasWhole || !size ? fit() : redraw();
    size = now;
  }).observe(stage);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  // For tests and for the console: where a task stands on the screen.
  window.taskMap = Object.freeze({ count: tasks.length, where: (index) => where(tasks[index]) });
  fit();
})();
