// Where the operator's page begins.
import { render } from "preact";
import { start } from "./state.ts";
import "./style.css";
import { App } from "./app.tsx";

start();
render(<App />, document.getElementById("app")!);
