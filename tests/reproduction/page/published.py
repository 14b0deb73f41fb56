"""The page of the published results, built once for all tests of a process."""

from functools import cache

from reproduction.page.build import Page, build_page
from reproduction.results import RESULTS, ResultsFolder


@cache
def published_page() -> Page:
    return build_page(ResultsFolder(RESULTS))
