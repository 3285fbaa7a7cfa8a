// Moments and places: when something was, and what the fragment of the address says.

/** Return a moment, in seconds since 1970, as date and time of day, the same everywhere. */
export function moment(seconds) {
  return new Date(seconds * 1000).toISOString().replace("T", " ").replace("Z", " UTC");
}

/**
 * Return where the fragment of the address says what is shown: for a page without a router.
 * @returns {{parameters: URLSearchParams, put: function(Object)}} what it says, and how to say
 *     something else; undefined takes a parameter away.
 */
export function fragmentPlace() {
  const parameters = new URLSearchParams(location.hash.slice(1));
  return {
    parameters,
    put(changes) {
      for (const [name, value] of Object.entries(changes)) {
        if (value === undefined) parameters.delete(name);
        else parameters.set(name, value);
      }
      history.replaceState(null, "", `#${parameters}`);
    },
  };
}
