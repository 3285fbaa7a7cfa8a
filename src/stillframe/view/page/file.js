// The script of a file to send: shows the document that lies in the file itself.

import { showSnapshot } from "./snapshot.js";

const shows = { snapshot: showSnapshot };

const held = JSON.parse(document.getElementById("document").textContent);
shows[held.kind](held, document.querySelector("main"));
