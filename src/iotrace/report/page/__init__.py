"""A report, a sweep or a comparison as one page of HTML that needs no network and, but for comfort, no script."""
