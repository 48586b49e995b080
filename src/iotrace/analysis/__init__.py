"""Pure functions from columns to results."""
