"""Texts that must be shown as typed wherever a text is shown."""

HOSTILE = (
    "</script><script>bad()</script>", "<b>bold</b>", "&lt;", "{{ 7*7 }}", "{% raw %}", "שלום", "مرحبا", "\\x00",
    "<!--", "]]>", "'\"><img src=x onerror=bad()>", "$x$", "\u2028", "日本語🎉",
)  # fmt: skip
