// What the picture of the tree says: nodes with their children and who holds them.

/** A tree of {id, up, below, depth, start, length, subtree, users, idle, text, salted, holders}. */
function treeOf(columns, requests, cached) {
  const root = { id: -1, up: null, below: [], depth: -1, start: 0, length: 0, users: 0, holders: [] };
  const byId = new Map([[-1, root]]);
  columns.id.forEach((id, i) => {
    const up = byId.get(columns.parent[i]) ?? root;
    const node = { id, up, below: [], depth: up.depth + 1, holders: [] };
    for (const name of ["start", "length", "subtree", "users", "idle", "text", "salted"]) node[name] = columns[name][i];
    up.below.push(node);
    byId.set(id, node);
  });
  for (const node of byId.values()) node.below.sort((a, b) => a.id - b.id); // where it was a second ago
  root.subtree = Math.max(cached, root.below.reduce((sum, node) => sum + node.subtree, 0), 1);
  for (const request of requests) hold(byId.get(request.node ?? -1) ?? root, request);
  return { root, byId };
}

/** A request holds its node and all above it. */
function hold(node, request) {
  for (let at = node; at.up; at = at.up) at.holders.push(request);
}

/** The nodes from just below the root to one. */
function pathTo(node) {
  return node.up ? [...pathTo(node.up), node] : [];
}

/**
 * Where each node goes when `focus` has the whole width: [{node, left, width, row}], and runs of
 * siblings too thin to draw as {left, width, row} alone. Lefts and widths are shares of the width.
 */
function laidOut(focus, thinnest) {
  const above = pathTo(focus).map((node) => ({ node, left: 0, width: 1, row: node.depth }));
  if (focus.up) above.pop();
  const places = above;
  const wait = focus.up ? [{ node: focus, left: 0, width: 1 }] : spread(focus, 0, 1);
  while (wait.length) {
    const place = wait.pop();
    const row = place.node.depth;
    if (place.width >= thinnest) {
      places.push({ ...place, row });
      wait.push(...spread(place.node, place.left, place.width));
    } else addDust(places, place, row);
  }
  return places;
}

/** The children of a node, side by side from its left; the last first, for a stack. */
function spread(node, left, width) {
  let from = left;
  const places = node.below.map((child) => {
    const share = (width * child.subtree) / node.subtree;
    from += share;
    return { node: child, left: from - share, width: share };
  });
  return places.reverse();
}

function addDust(places, { left, width }, row) {
  const last = places.at(-1);
  const touches = last && !last.node && last.row === row && Math.abs(last.left + last.width - left) < 1e-9;
  if (touches) last.width += width;
  else places.push({ left, width, row });
}
