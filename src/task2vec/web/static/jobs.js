// One embedding under way: its progress from the server's events, or by asking again where events do not come through.

import { cancelJob, jobEvents, readJob, readJobs } from "./api.js";
import { button, get, make, tell } from "./dom.js";
import { problem } from "./notices.js";
import { percent } from "./words.js";

const place = get("progress");
const isOver = ({ state }) => ["done", "failed", "cancelled"].includes(state);
let followed = null,
  whenDone = () => {},
  stage = "",
  isFromHere = false;

/** Takes up what was under way when the page was opened. */
export async function startJobs(onDone) {
  whenDone = onDone;
  const { jobs } = await readJobs();
  const job = jobs.findLast((one) => !isOver(one));
  if (job) follow(job);
}

export const isBusy = () => followed !== null;

/** Shows a job until it ends. */
export function follow(job, { isOurs = false } = {}) {
  followed = job.id;
  isFromHere = isOurs;
  stage = "";
  show(job);
  const events = jobEvents(job.id);
  const take = (event) => {
    const news = JSON.parse(event.data);
    show(news);
    if (isOver(news)) finish(news);
  };
  const finish = (news) => {
    events.close();
    if (followed === job.id) end(news);
  };
  events.addEventListener("progress", take);
  events.addEventListener("end", async (event) => {
    events.close();
    if (followed === job.id) end(isOver(parse(event.data)) ? parse(event.data) : await readJob(job.id));
  });
  events.addEventListener("error", () => {
    events.close();
    if (followed === job.id) poll(job.id);
  });
}

function parse(text) {
  try {
    return JSON.parse(text) ?? {};
  } catch {
    return {};
  }
}

async function poll(id) {
  try {
    for (let job = await readJob(id); followed === id; job = await readJob(id)) {
      show(job);
      if (isOver(job)) return end(job);
      await new Promise((done) => {
        setTimeout(done, 700);
      });
    }
  } catch (error) {
    end({ state: "failed", error });
  }
}

function show(job) {
  if (isOver(job) || followed !== job.id) return;
  place.hidden = false;
  if (!place.querySelector("progress")) {
    place.replaceChildren(
      make("span", { className: "word", id: "job-name" }),
      make("progress", { attributes: { "aria-labelledby": "job-name" } }),
      make("span", { className: "number", id: "job-part" }),
      button("Cancel", () => cancelJob(followed).catch(() => {}), { id: "cancel" }),
    );
  }
  const bar = place.querySelector("progress");
  if (job.total > 0) [bar.max, bar.value] = [job.total, job.done];
  else bar.removeAttribute("value");
  get("job-name").textContent =
    job.state === "waiting" ? `“${job.name}” waits for its turn` : `Embedding “${job.name}”: ${job.stage}`;
  get("job-part").textContent = job.total > 0 ? percent(job.done / job.total, 0) : "";
  if (job.stage !== stage) tell(get("job-name").textContent);
  stage = job.stage;
}

function end(job) {
  followed = null;
  place.replaceChildren();
  place.hidden = job.state === "done";
  const close = button("Close", () => {
    place.hidden = true;
  });
  if (job.state === "failed") place.append(problem(job.error ?? { what: "The embedding failed." }), close);
  if (job.state === "cancelled")
    place.append(
      make(
        "span",
        { attributes: { role: "status" } },
        `“${job.name ?? "The embedding"}” was cancelled: nothing of it is kept.`,
      ),
      close,
    );
  whenDone({ ...job, isOurs: isFromHere });
}
