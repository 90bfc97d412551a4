"""For tools that look for this file: pyproject.toml says everything."""

import setuptools

setuptools.setup()
