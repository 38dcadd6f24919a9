// Where the page begins.
import { render } from "preact";
import "./calls.ts";
import * as state from "./state.ts";
import "./style.css";
import { App } from "./ui/app.tsx";
import { focusComposer } from "./ui/composer.tsx";

const app = document.getElementById("app")!;
void state.start().then(focusComposer);
// The text for browsers in which the page does not start.
app.replaceChildren();
render(<App />, app);
