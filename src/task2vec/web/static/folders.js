// Folders that the server offers, as a tree laid flat.

/** Whether a folder is a task: two class folders or more, with images. */
export const isTask = ({ images, classes }) => images > 0 && classes > 1;

/**
 * Tasks and the folders that lead to them, each after its parent, with its depth and its path of names.
 * Class folders go without saying; `loose` counts the folders with images that are neither.
 */
export function layFlat(list) {
  const known = new Map(list.map((folder) => [folder.id, folder])),
    leads = new Set(),
    below = new Map();
  for (const folder of list) {
    const parent = known.has(folder.parent) ? folder.parent : null;
    below.set(parent, [...(below.get(parent) ?? []), folder]);
    if (!isTask(folder)) continue;
    for (let one = folder; one && !leads.has(one.id); one = known.get(one.parent)) leads.add(one.id);
  }
  const flat = [];
  const walk = (parent, depth, path) => {
    const next = (below.get(parent) ?? []).filter(({ id }) => leads.has(id));
    next.sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true }));
    for (const folder of next) {
      const name = path ? `${path}/${folder.name}` : folder.name;
      flat.push({ ...folder, depth, path: name });
      walk(folder.id, depth + 1, name);
    }
  };
  walk(null, 0, "");
  const isClass = ({ parent }) => known.has(parent) && isTask(known.get(parent));
  const loose = list.filter((folder) => folder.images > 0 && !leads.has(folder.id) && !isClass(folder)).length;
  return { flat, loose };
}
