"""HTML pages: the files of this folder are their templates."""

from mlm.base import extras
from mlm.report import specs


def render(file: str, /, **values) -> str:
    """A rendered template, which also gets the palette; texts are escaped, a missing value is an error."""
    jinja2 = extras.import_extra("jinja2", "report", file)
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("mlm.report.pages", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}  # of tojson: the order of keys stays
    return environment.get_template(file).render(palette=specs, **values)
