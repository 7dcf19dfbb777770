"""Families of models: the tables of config.json fields and tensor names, by `model_type`."""

import importlib
import pkgutil
from collections.abc import Mapping

from transparity_conformance.checkpoints.tables.codecs import Family

FAMILIES: Mapping[str, Family] = dict(
    sorted(
        (model_type, family)
        for module in pkgutil.iter_modules(__path__, f"{__name__}.")
        for model_type, family in importlib.import_module(module.name).FAMILIES.items()
    )
)
