"""YAML as it is shown, its parts told apart by colour."""

from markupsafe import Markup


def highlight(text: str) -> Markup:
    """YAML as HTML, its parts in elements of classes that `fedq.css` colours."""
    # Loaded with the first page that shows some.
    from pygments import highlight as marked
    from pygments.formatters import HtmlFormatter
    from pygments.lexers.data import YamlLexer

    return Markup(marked(text, YamlLexer(), HtmlFormatter(nowrap=True)))  # noqa: S704 - Pygments escapes what it marks
