"""The page of models side by side, served. Its packages are those of the extra `serve`."""

from mlm.base import extras

# Here, once: each module of this package imports some of them, and this file runs before they do.
for package in ("jinja2", "starlette", "uvicorn"):
    extras.import_extra(package, "serve", "mlm serve")
