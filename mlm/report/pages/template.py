"""The files beside this one as templates of pages."""
from mlm.report import palette


def filled(file: str, /, **given) -> str:
    """A template with what it asks for, colours among it; texts are escaped, what is missing is an error."""
    import jinja2

    environment = jinja2.Environment(loader=jinja2.PackageLoader("mlm.report.pages", "."), autoescape=True,
                                     trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    return environment.get_template(file).render(palette=palette, **given)
