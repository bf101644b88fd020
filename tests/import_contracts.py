"""Contract of import-linter for names of one library, in addition to those for modules; run by ``lint-imports``.

Its own contracts treat an external library as one node, whichever names are imported. Of the Kubernetes library
only two classes may be used, and the rest (seventy-seven thousand lines of typed calls, 251 models) must stay out.
"""

from __future__ import annotations

import re

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output

_FROM = re.compile(r"from (?P<module>[\w.]+) import (?P<names>[\w, ]+?)\s*(#.*)?$")


class NamesContract(Contract):
    """Names that may be imported of an external library, and the modules that may import them.

    Attributes:
        library: Top-level name of the library.
        importers: Modules that may import it, including all below them.
        names: Allowed names, each with its module: ``kubernetes.aio.client.ApiClient``.
    """

    type_name = "names"

    library = fields.StringField()
    importers = fields.SetField(subfield=fields.StringField())
    names = fields.SetField(subfield=fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Compare each import of the library with the list."""
        library, importers, names = str(self.library), set(self.importers), set(self.names)
        offences = [
            f"{importer}, line {detail['line_number']}: {detail['line_contents'].strip()}"
            for importer in sorted(graph.find_modules_that_directly_import(library))
            for detail in graph.get_import_details(importer=importer, imported=library)
            if not is_below(importer, importers) or not names_in(detail["line_contents"]) <= names
        ]
        return ContractCheck(kept=not offences, metadata={"offences": offences})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print the imports that are not allowed."""
        output.print_error(f"Of {self.library} only {', '.join(sorted(self.names))} may be imported:", bold=True)
        for offence in check.metadata["offences"]:
            output.print_error(f"- {offence}")


def is_below(module: str, roots: set[str]) -> bool:
    """Return True if the module is one of the roots or below one."""
    return any(module == root or module.startswith(f"{root}.") for root in roots)


def names_in(line: str) -> set[str]:
    """Return the full names that an import statement binds; the line itself for an unsupported form."""
    match = _FROM.match(line.strip())
    if match is None or " as " in match["names"]:  # `import x.y` gives access to everything below it
        return {line.strip()}
    return {f"{match['module']}.{name.strip()}" for name in match["names"].split(",")}
