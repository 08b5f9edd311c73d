package httpapi

import "net/http"

// place is where the next page of a list begins; there is none without at.
type place struct {
	kind   byte   // of cursor
	filter string // that the cursor is good for
	at     []byte
}

// answerList answers with {name: […]} and, if there is another page, its
// next_cursor.
func answerList[T any](e *exchange, name string, items []T, write func(*writer, T), next place) error {
	buf := getBuffer()
	defer putBuffer(buf)
	w := writer{buf: buf.b}
	w.open()
	w.name(name)
	w.openArray()
	for _, item := range items {
		write(&w, item)
	}
	w.closeArray()
	if len(next.at) > 0 {
		w.plain("next_cursor", newCursor(next.kind, next.filter, next.at))
	}
	w.close()
	buf.b = w.buf
	return e.answer(http.StatusOK, w.buf)
}
