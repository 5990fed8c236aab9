// The JSON API of the server that served this page, and of no other.

const BASE = "api/v1";

/** A refused request, in the three parts of the server's errors. */
export class ApiError extends Error {
  constructor({ what, why, fix }, status) {
    super(what);
    Object.assign(this, { what, why, fix, status });
  }
}

const LOST = {
  what: "The server does not respond.",
  why: "It may have stopped, or it may be restarting.",
  fix: "Check the terminal in which `task2vec serve` runs, then reload this page.",
};
const UNEXPLAINED = (status) => ({
  what: `The server responded with status ${status} and gave no reason.`,
  why: "Something unexpected went wrong.",
  fix: "Check the terminal in which `task2vec serve` runs.",
});

async function ask(path, query = {}, signal = undefined) {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const search = given.length ? `?${new URLSearchParams(given)}` : "";
  let response;
  try {
    response = await fetch(`${BASE}/${path}${search}`, { credentials: "same-origin", cache: "no-store", signal });
  } catch (problem) {
    if (problem.name === "AbortError") throw problem;
    throw new ApiError(LOST, 0);
  }
  const body = await response.json().catch(() => null);
  signal?.throwIfAborted(); // the response is no longer wanted
  if (!response.ok || body === null)
    throw new ApiError(body?.error?.what ? body.error : UNEXPLAINED(response.status), response.status);
  return { status: response.status, body };
}

const read = async (path, query, signal) => (await ask(path, query, signal)).body;
const encode = encodeURIComponent;

export const readStatus = () => read("status");
export const findTasks = (query, signal) => read("tasks", query, signal);
export const readTask = (id, signal) => read(`tasks/${encode(id)}`, {}, signal);
export const readNearest = (id, limit, signal) => read(`tasks/${encode(id)}/nearest`, { limit }, signal);
export const readRecommendation = (id, signal) => read(`tasks/${encode(id)}/recommendation`, {}, signal);
export const reportAddress = (id) => `${BASE}/tasks/${encode(id)}/report`;
export const compareTasks = (first, second, signal) => read("compare", { first, second }, signal);
export const readMatrix = (query, signal) => read("matrix", query, signal);
export const readModels = (shots, signal) => read("models", { shots }, signal);

/** The map of a space; asked for again while the server is making it. */
export async function readMap(space, { onWait, signal } = {}) {
  for (let wait = 250; ; wait = Math.min(1500, wait * 1.4)) {
    const { status, body } = await ask("map", { space }, signal);
    if (status !== 202) return body;
    onWait?.(body);
    await new Promise((done) => setTimeout(done, wait));
    signal?.throwIfAborted();
  }
}
