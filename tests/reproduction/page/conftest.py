from tests.report.conftest import window as window  # the fixture
