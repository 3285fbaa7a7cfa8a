// Chandy and Lamport's rules with given times, in half ticks: the application acts at even ones, the
// snapshot at odd ones. Tests compare this with the simulator.

/**
 * Simulate a snapshot of a document of scrubber_document.py.
 * @param {{initiator: number, at: number, delays: number[]}} request - the initiation, and the travel
 *     time of the marker of each channel if nothing delays it.
 * @returns {{cuts: number[], arrivals: number[], whites: boolean[], held: number[][],
 *     wasPresent: boolean, whiteCount: number}} when each process records its state and each marker
 *     arrives (Infinity: never), which events are before the cut, which messages each channel holds,
 *     and whether the system was ever in that state.
 */
export function simulateSnapshot(model, request) {
  const cuts = model.processes.map(() => Infinity);
  const arrivals = model.channels.map(() => Infinity);
  cuts[request.initiator] = request.at;
  const open = new Set(cuts.keys());
  while (open.size > 0) {
    const process = [...open].reduce((first, other) => (cuts[other] < cuts[first] ? other : first));
    open.delete(process);
    if (cuts[process] === Infinity) break;
    model.channels.forEach(([source, target], channel) => {
      if (source !== process) return;
      arrivals[channel] = markerArrival(model, channel, cuts[process], request.delays[channel]);
      cuts[target] = Math.min(cuts[target], arrivals[channel]);
    });
  }
  const whites = model.events.map(([process, , at]) => at < cuts[process]);
  const firstRed = whites.indexOf(false);
  return {
    cuts,
    arrivals,
    whites,
    held: model.channels.map((_, channel) => inFlight(model, channel, cuts)),
    wasPresent: firstRed < 0 || !whites.includes(true, firstRed),
    whiteCount: whites.filter(Boolean).length,
  };
}

/** Return the earliest and latest arrival of a marker that is sent at `cut`: it overtakes no message,
 * and no message overtakes it. */
export function markerWindow(model, channel, cut) {
  let [low, high] = [cut, model.end];
  for (const [, on, sent, accepted] of model.messages) {
    if (on !== channel) continue;
    const came = model.events[accepted][2];
    if (model.events[sent][2] < cut) low = Math.max(low, came + 1);
    else high = Math.min(high, came - 1);
  }
  return [low, Math.max(low, high)];
}

function markerArrival(model, channel, cut, delay) {
  const [low, high] = markerWindow(model, channel, cut);
  return Math.min(Math.max(cut + delay, low), high);
}

function inFlight(model, channel, cuts) {
  const [source, target] = model.channels[channel];
  return model.messages
    .map((message, number) => [number, ...message])
    .filter(([, , on, sent, accepted]) => on === channel && model.events[sent][2] < cuts[source] && model.events[accepted][2] > cuts[target])
    .map(([number]) => number);
}
