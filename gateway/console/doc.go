// Package console is the web console: pages for the person who wants to know
// whether all is well, why a task is not running, and what to do about it.
//
// Every page is made on the server and asks the HTTP API, in process, through
// the routes and in the name of whoever asked for the page. The console has no
// other way to anything, so whatever it can do a script can do, and nobody can
// do more with it than without.
//
// Pages work without a script. The script (static/console.js) refreshes what is
// shown, draws charts, takes keys and copies text. Nothing comes from elsewhere,
// and the Content-Security-Policy forbids any script or style that is not one of
// our files. What users have sent, payloads above all, is text: html/template
// escapes it, and no template marks anything as safe.
//
// A change is a form that is posted. It is taken only from a page of this
// console in this browser, see guard.go.
//
// The package owns no goroutine and no state.
package console
