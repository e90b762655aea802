"""Options in the reference of Python: functions that get them from a declaration have the docstring that ``help()`` shows.

An extension of griffe, which otherwise reads source without running it.
"""

from __future__ import annotations

import inspect
from typing import Any

import griffe


class DeclaredOptions(griffe.Extension):
    """Give every function decorated by `streamcd.core.options.takes` its keywords."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        if func.docstring is None or not any("takes(" in str(one.value) for one in func.decorators):
            return
        made = griffe.dynamic_import(func.path)
        func.docstring.value = inspect.getdoc(made) or ""
        keywords = [
            griffe.Parameter(
                one.name,
                kind=griffe.ParameterKind.keyword_only,
                default=None if one.default is one.empty else repr(one.default),
            )
            for one in inspect.signature(made).parameters.values()
            if one.kind is one.KEYWORD_ONLY
        ]
        func.parameters = griffe.Parameters(*list(func.parameters)[:-1], *keywords)
