"""LiteLLM's database, for `behaviours.py`: PostgreSQL, LiteLLM's tables, and Prisma's client with its query engine.

Needs PostgreSQL's programs, Node with npm, and `prisma==0.15.0` beside LiteLLM in its virtual environment. Prisma's client is generated there.
Prisma's engines are usually downloaded from Prisma's own host; here the engine comes from npm (`prisma_engine.js`).
"""
import os
import pathlib
import shutil
import socket
import subprocess

HERE = pathlib.Path(__file__).resolve().parent
# The version for which Prisma's client for Python 0.15.0 was made.
PRISMA = "5.17.0"
PACKAGES = [f"prisma@{PRISMA}", f"@prisma/client@{PRISMA}", f"@prisma/adapter-pg@{PRISMA}", "pg@8", "graphql@16"]
USER = "litellm"


class Database:
    """A PostgreSQL server in `folder`, with LiteLLM's tables. `environment` is what LiteLLM's proxy needs to use it."""

    def __init__(self, folder, litellm):
        self.folder = folder
        programs = litellm.resolve().parent
        engine = self.engine()
        self.environment = {
            "PATH": f"{programs}:{os.environ['PATH']}", "PRISMA_QUERY_ENGINE_BINARY": str(engine), "PRISMA_SCHEMA_ENGINE_BINARY": str(engine),
            "PRISMA_CLI_QUERY_ENGINE_TYPE": "binary", "CHECKPOINT_DISABLE": "1", "DISABLE_SCHEMA_UPDATE": "true", "STORE_MODEL_IN_DB": "False",
        }
        self.generate_client(programs, engine)
        self.port = self.start_server()
        self.environment["DATABASE_URL"] = f"postgresql://{USER}@127.0.0.1:{self.port}/{USER}"
        self.create_tables(programs)

    def engine(self):
        """The program that stands for Prisma's query engine."""
        folder = self.folder / "engine"
        folder.mkdir()
        (folder / "package.json").write_text("{}")
        run(["npm", "install", "--silent", "--ignore-scripts", *PACKAGES], cwd=folder)
        program = folder / "query-engine"
        shutil.copy(HERE / "prisma_engine.js", program)
        program.chmod(0o755)
        return program

    def generate_client(self, programs, engine):
        lines = package(programs, "litellm", "proxy/schema.prisma").read_text().splitlines()
        schema = self.folder / "schema.prisma"
        # The other platforms' engines are not needed, and could not be downloaded.
        schema.write_text("\n".join(line for line in lines if "binaryTargets" not in line))
        command = ["node", engine.parent / "node_modules/prisma/build/index.js", "generate", "--schema", schema]
        run(command, env={**os.environ, **self.environment})

    def start_server(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        home = self.folder / "postgres"
        home.mkdir()
        self.data = home / "data"
        if os.geteuid() == 0:
            # PostgreSQL does not run as root; Debian's package has this user.
            self.folder.chmod(0o755)
            shutil.chown(home, "postgres")
        self.as_owner("initdb", "-D", self.data, "-U", USER, "--auth=trust", "-E", "UTF8")
        options = f"-p {port} -k {home} -c listen_addresses=127.0.0.1 -c fsync=off"
        self.as_owner("pg_ctl", "-D", self.data, "-o", options, "-l", home / "log", "-w", "start")
        return port

    def as_owner(self, *command):
        before = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        run([*before, *command])

    def create_tables(self, programs):
        self.sql(f"create database {USER}", "postgres")
        migrations = sorted(package(programs, "litellm_proxy_extras", "migrations").glob("*/migration.sql"))
        self.sql("\n".join(m.read_text() for m in migrations), USER)

    def sql(self, text, database):
        command = ["psql", "-q", "-h", "127.0.0.1", "-p", self.port, "-U", USER, database]
        run(command, input=text, text=True)

    def stop(self):
        self.as_owner("pg_ctl", "-D", self.data, "-m", "immediate", "stop")


def package(programs, name, path):
    """A file of a Python package of that virtual environment, found without running the package."""
    find = f"import importlib.util; print(importlib.util.find_spec('{name}').submodule_search_locations[0])"
    return pathlib.Path(subprocess.check_output([programs / "python", "-c", find], text=True).strip(), path)


def run(command, **more):
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **more)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} failed: {done.stdout}")
