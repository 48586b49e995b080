"""A report, a sweep or a comparison as one page of HTML, which needs no network."""
