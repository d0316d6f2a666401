"""One verb, one function (spec 13)."""
