// One embedding under way: its progress from the server's events, or by asking again where events do not come through.
// Others wait for their turn, and are followed then.

import { cancelJob, jobEvents, readJob, readJobs } from "./api.js";
import { button, get, make, tell } from "./dom.js";
import { problem } from "./notices.js";
import { percent } from "./words.js";

const place = get("progress");
const isOver = ({ state }) => ["done", "failed", "cancelled"].includes(state);
const ours = new Map(); // names of those that were begun on this page and have not ended, by id
let followed = null,
  row = null,
  whenDone = () => {},
  whenChanged = () => {},
  stage = "";

/** Takes up what was under way when the page was opened. */
export async function startJobs(onDone) {
  whenDone = onDone;
  await followNext();
}

/** Calls `listener` whenever another job begins, waits or ends. */
export const watchJobs = (listener) => {
  whenChanged = listener;
};

/** The names of what is being embedded and of what waits for its turn, as far as this page knows. */
export const underWay = () =>
  followed ? [followed.name, ...[...ours].filter(([id]) => id !== followed.id).map(([, name]) => name)] : [];

/** A job that was begun here: shown at once, or when those before it have ended. */
export function take(job) {
  ours.set(job.id, job.name);
  if (followed) return whenChanged();
  place.replaceChildren(); // what was told of earlier ones
  follow(job);
}

async function followNext() {
  const { jobs } = await readJobs();
  const job = jobs.findLast((one) => !isOver(one) || ours.has(one.id)); // the newest come first
  if (job && !followed) follow(job);
}

/** Shows a job until it ends. */
function follow(job) {
  followed = job;
  stage = "";
  if (isOver(job)) return end(job);
  show(job);
  whenChanged();
  const events = jobEvents(job.id);
  const take = (event) => {
    const news = JSON.parse(event.data);
    show(news);
    if (isOver(news)) finish(news);
  };
  const finish = (news) => {
    events.close();
    if (followed === job) end(news);
  };
  events.addEventListener("progress", take);
  events.addEventListener("end", async (event) => {
    events.close();
    if (followed === job) end(isOver(parse(event.data)) ? parse(event.data) : await readJob(job.id));
  });
  events.addEventListener("error", () => {
    events.close();
    if (followed === job) poll(job);
  });
}

function parse(text) {
  try {
    return JSON.parse(text) ?? {};
  } catch {
    return {};
  }
}

async function poll(job) {
  try {
    for (let news = await readJob(job.id); followed === job; news = await readJob(job.id)) {
      show(news);
      if (isOver(news)) return end(news);
      await new Promise((done) => {
        setTimeout(done, 700);
      });
    }
  } catch (error) {
    end({ ...job, state: "failed", error });
  }
}

function show(job) {
  if (isOver(job) || followed?.id !== job.id) return;
  place.hidden = false;
  if (!row?.isConnected) {
    row = make(
      "div",
      {},
      make("span", { className: "word", id: "job-name" }),
      make("progress", { attributes: { "aria-labelledby": "job-name" } }),
      make("span", { className: "number", id: "job-part" }),
      button("Cancel", () => cancelJob(followed.id).catch(() => {}), { id: "cancel" }),
    );
    place.prepend(row);
  }
  const bar = row.querySelector("progress");
  if (job.total > 0) [bar.max, bar.value] = [job.total, job.done];
  else bar.removeAttribute("value");
  get("job-name").textContent =
    job.state === "waiting" ? `“${job.name}” waits for its turn` : `Embedding “${job.name}”: ${job.stage}`;
  get("job-part").textContent = job.total > 0 ? percent(job.done / job.total, 0) : "";
  if (job.stage !== stage) tell(get("job-name").textContent);
  stage = job.stage;
}

function end(job) {
  const isOurs = ours.delete(followed.id);
  followed = null;
  row?.remove();
  place.hidden = !place.children.length;
  if (job.state === "failed") notify(problem(job.error ?? { what: "The embedding failed." }));
  if (job.state === "cancelled")
    notify(
      make(
        "span",
        { attributes: { role: "status" } },
        `“${job.name ?? "The embedding"}” was cancelled: nothing of it is kept.`,
      ),
    );
  whenChanged();
  whenDone({ ...job, isOurs });
  followNext().catch(() => {}); // whoever asks next hears that the server does not answer
}

/** A line below the progress, which stays until somebody closes it; `action` is one more button. */
export function notify(words, action = null) {
  const close = () => {
    line.remove();
    place.hidden = !place.children.length;
  };
  const line = make(
    "div",
    {},
    words,
    action
      ? button(action.name, () => {
          close();
          action.run();
        })
      : null,
    button("Close", close),
  );
  place.append(line);
  place.hidden = false;
}
