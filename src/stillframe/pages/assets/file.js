// The entry of the script in a self-contained file: shows the document inside it.

import { showPlayer } from "./player.js";
import { showSnapshot } from "./snapshot.js";
import { showDiff } from "./diff.js";
import { showObservation } from "./observation.js";

const shows = { play: showPlayer, snapshot: showSnapshot, comparison: showDiff, observation: showObservation };

const content = JSON.parse(document.getElementById("document").textContent);
shows[content.kind](content, document.querySelector("main"));
