// Words that not everybody knows, told in plain ones where they stand: a title is seen by nobody without a mouse.

import { facts, make } from "./dom.js";

const WORDS = {
  "head error": "how often a simple classifier on top of the network was wrong about images that it had not seen",
  norm: "how much the task asks of the network: the larger, the harder",
  noise: "how far apart two estimates of this very task would lie by chance",
  "comes with task2vec": "its makers embedded it, and measured on it how well each expert does",
  "static choice": "the expert that is best on average, whatever the task",
  measured: "its error was measured on this very task, not predicted",
  "train it": "nobody has its weights: train one like it",
  generic: "a network as it comes from ImageNet, a large collection of everyday photos; it was taught nothing since",
  network: "another network as it comes from ImageNet",
  whole: "taught on a whole dataset",
  half: "taught on half of the classes of a dataset",
  taxon: "taught on one branch of a dataset's family tree",
  label: "taught on one kind of label",
};

/** Something to unfold that says what words mean; those that are not used here are left out. */
export function explain(names, title = "What these words mean") {
  const known = names.filter((name) => WORDS[name]);
  return known.length ? unfold(title, facts(known.map((name) => [name, WORDS[name]]))) : null;
}

export const unfold = (title, ...children) =>
  make("details", { className: "meaning" }, make("summary", {}, title), ...children);
