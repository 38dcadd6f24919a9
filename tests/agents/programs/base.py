"""What is asked of a program."""

from harness import answer


class Program:
    """One program. `place` and `bin` are set before its other methods are called."""

    name = ""
    version = ""
    # The last scenario that went well.
    last = None
    # What its user says before the task.
    greeting = ""
    # The key of the command line.
    key = ""
    # Which of Octet's APIs it speaks.
    api = ""
    # What a feature is not tried for: feature -> why.
    without = {}
    # Further names of the server's model.
    aliases = []
    # The name of `--model`.
    second_model = "haiku"
    # It writes calls of one answer into its history as one after the other.
    splits_calls = False
    # It has no tools: the model writes changes as text.
    edits_as_text = False
    # What must not be in any prompt.
    unwanted = None
    # The answers after that of `agent`.
    after_agent = None
    # What is in the message behind a tool's picture.
    image_expect = ""
    # The model's calls of its tools: functions that return the text of a call; None where it has none.
    agent = None
    image = None

    def install(self, installed):
        """Installs it; the folder of its programs, and what else belongs into the PATH."""
        raise NotImplementedError

    def setup(self):
        """Writes its settings into its home. The server listens already."""

    def has(self, feature):
        """Whether a feature can be tried."""
        if feature == "screens" and not (self.has("image") and self.image_expect):
            return False
        return feature not in self.without and (feature not in ("agent", "image") or getattr(self, feature) is not None)

    def script(self):
        """Tasks of its own, instead of those that use its tools."""
        return []

    def subtask_done(self):
        """What the model of a sub-agent answers after its command."""
        return answer("SUB-DONE", expect="sub-64")

    def ask(self, prompt, resume=False, model=None):
        """Asks it something, in the last session or in a new one; what it said."""
        raise NotImplementedError

    def path(self, name):
        """A file of the project."""
        return str(self.place.project / name)
