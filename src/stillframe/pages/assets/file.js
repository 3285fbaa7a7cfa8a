// The script of a file to send: shows the document that lies in the file itself.

import { showPlayer } from "./player.js";
import { showSnapshot } from "./snapshot.js";
import { showDiff } from "./diff.js";

const shows = { play: showPlayer, snapshot: showSnapshot, comparison: showDiff };

const content = JSON.parse(document.getElementById("document").textContent);
shows[content.kind](content, document.querySelector("main"));
