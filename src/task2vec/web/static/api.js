// The JSON API of the server that handed out this page, and of no other.

const BASE = "api/v1";

/** What the server refused, in its three parts. */
export class ApiError extends Error {
  constructor({ what, why, mend }, status) {
    super(what);
    Object.assign(this, { what, why, mend, status });
  }
}

const LOST = {
  what: "The server does not answer.",
  why: "It may have been stopped, or it is restarting.",
  mend: "Look at the window in which `task2vec serve` runs, then reload this page.",
};

const ODD = (status) => ({
  what: `The server answered with ${status} and no reason.`,
  why: "Something went wrong that it did not foresee.",
  mend: "Look at the window in which `task2vec serve` runs.",
});

async function ask(path, { query = {}, ...options } = {}) {
  const wanted = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const search = wanted.length ? `?${new URLSearchParams(wanted)}` : "";
  let answer;
  try {
    answer = await fetch(`${BASE}/${path}${search}`, { credentials: "same-origin", cache: "no-store", ...options });
  } catch (problem) {
    if (problem.name === "AbortError") throw problem;
    throw new ApiError(LOST, 0);
  }
  const body = await answer.json().catch(() => null);
  options.signal?.throwIfAborted(); // what was asked for is no longer wanted: half an answer is no answer
  if (!answer.ok || body === null)
    throw new ApiError(body?.error?.what ? body.error : ODD(answer.status), answer.status);
  return { status: answer.status, body };
}

const read = async (path, query, signal) => (await ask(path, { query, signal })).body;
const part = encodeURIComponent;

export const readStatus = () => read("status");
export const findTasks = (query, signal) => read("tasks", query, signal);
export const readTask = (id, signal) => read(`tasks/${part(id)}`, {}, signal);
export const readNearest = (id, limit, signal) => read(`tasks/${part(id)}/nearest`, { limit }, signal);
export const readRecommendation = (id, train, signal) => read(`tasks/${part(id)}/recommendation`, { train }, signal);
export const compareTasks = (first, second, signal) => read("compare", { first, second }, signal);
export const readMatrix = (query, signal) => read("matrix", query, signal);
export const readExperts = (train, signal) => read("experts", { train }, signal);
export const readFolders = (root) => read("folders", { root });
export const readJobs = () => read("jobs");
export const readJob = (id) => read(`jobs/${part(id)}`);
export const jobEvents = (id) => new EventSource(`${BASE}/jobs/${part(id)}/events`);
export const cancelJob = (id) =>
  ask(`jobs/${part(id)}`, { method: "DELETE", headers: { "Content-Type": "application/json" } });

export async function startJob(folder, name) {
  const body = JSON.stringify(name ? { folder, name } : { folder });
  return (await ask("jobs", { method: "POST", headers: { "Content-Type": "application/json" }, body })).body;
}

/** The map of a space; asked again while the server is still laying it out. */
export async function readMap(space, { onWait, signal } = {}) {
  for (let wait = 250; ; wait = Math.min(1500, wait * 1.4)) {
    const { status, body } = await ask("map", { query: { space }, signal });
    if (status !== 202) return body;
    onWait?.(body);
    await new Promise((done) => {
      setTimeout(done, wait);
    });
    signal?.throwIfAborted();
  }
}
