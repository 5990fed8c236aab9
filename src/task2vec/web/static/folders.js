// Folders that the server offers, as a tree laid flat.

/** Whether a folder could be a task: two class folders or more, with images. */
const isTask = ({ images, classes }) => images > 0 && classes > 1;

/**
 * Tasks and the folders that lead to them, each after its parent, with its depth and its path of names; `canBe` says
 * which can be chosen. A folder of tasks could be one as well, with these as its classes: it comes again after them, as
 * `isOuter`. Class folders go without saying; `loose` are the paths of the folders with images that are neither.
 */
export function layFlat(list) {
  const known = new Map(list.map((folder) => [folder.id, folder])),
    outer = new Set(),
    below = new Map();
  for (const folder of list) {
    const parent = known.has(folder.parent) ? folder.parent : null;
    below.set(parent, [...(below.get(parent) ?? []), folder]);
    if (!isTask(folder)) continue;
    for (let one = known.get(parent); one && !outer.has(one.id); one = known.get(one.parent)) outer.add(one.id);
  }
  const isListed = (folder) => isTask(folder) || outer.has(folder.id);
  const flat = [];
  const walk = (parent, depth, path) => {
    const next = (below.get(parent) ?? []).filter(isListed);
    next.sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true }));
    for (const folder of next) {
      const one = { ...folder, depth, path: path ? `${path}/${folder.name}` : folder.name };
      const isOuter = outer.has(folder.id);
      flat.push({ ...one, canBe: !isOuter });
      walk(folder.id, depth + 1, one.path);
      if (isOuter && isTask(folder)) flat.push({ ...one, depth: depth + 1, canBe: true, isOuter });
    }
  };
  walk(null, 0, "");
  const above = (folder) => known.get(folder.parent);
  const isInside = (folder) => Boolean(above(folder)) && (isOwnTask(above(folder)) || isInside(above(folder)));
  const isOwnTask = (folder) => isTask(folder) && !outer.has(folder.id);
  const isLoose = (folder) => folder.images > 0 && !isListed(folder) && !isInside(folder);
  const pathOf = (folder) => (above(folder) ? `${pathOf(above(folder))}/${folder.name}` : folder.name);
  const loose = list.filter((folder) => isLoose(folder) && !(above(folder) && isLoose(above(folder)))).map(pathOf);
  return { flat, loose };
}
