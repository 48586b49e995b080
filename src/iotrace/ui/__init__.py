"""`iotrace ui`: all runs below directories in the browser, live and past."""
