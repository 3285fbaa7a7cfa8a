// The script of a file to send: shows the document that lies in the file itself.

import { showPlay } from "./player.js";
import { showSnapshot } from "./snapshot.js";
import { showComparison } from "./diff.js";

const shows = { play: showPlay, snapshot: showSnapshot, comparison: showComparison };

const held = JSON.parse(document.getElementById("document").textContent);
shows[held.kind](held, document.querySelector("main"));
