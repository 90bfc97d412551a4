"""The page of models side by side, served. Its packages are those of the extra `serve`."""

from mlm.base import extras

# Here, once: each module of this package imports some of them, and this file runs before they do.
extras.import_extra("jinja2", "serve", "mlm serve")
extras.import_extra("starlette", "serve", "mlm serve")
extras.import_extra("uvicorn", "serve", "mlm serve")
