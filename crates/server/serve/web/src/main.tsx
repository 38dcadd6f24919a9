// Where the page begins.
import { render } from "preact";
import "./calls.ts";
import * as state from "./state.ts";
import "./style.css";
import { App } from "./ui/app.tsx";
import { focusComposer } from "./ui/composer.tsx";

void state.start().then(focusComposer);
render(<App />, document.getElementById("app")!);
